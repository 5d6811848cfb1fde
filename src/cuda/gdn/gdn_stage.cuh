// SPDX-License-Identifier: Apache-2.0
// First part of GDN decode (sm_90a): what a block works on, its shared memory, and how its rows get
// there: convolution, unit keys and queries, gates, or rows left pending.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/gdn/gdn_math.cuh"
#include "cuda/gdn/gdn_plan.h"
#include "cuda/gdn/gdn_step.cuh"

namespace tessera::cuda::device {

/// Two blocks form a cluster; then, or when every block has a multiprocessor to itself (kAlone),
/// warps without a part of the matrix help to stage rows, so that all are under way at once.
template <int kBlocksPerHead, bool kAlone>
struct GdnDecode {
  static constexpr int kSplit = kBlocksPerHead;
  static constexpr int kColumns = kGdnDim / kSplit;                  // value dims of a block
  static constexpr int kCellWarps = kColumns / DeltaTile::kColumns;  // these hold the matrix
  static constexpr int kWarps = kAlone ? 12 : kCellWarps;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kBlocksPerSm = kAlone ? 1 : 2;
  static_assert(kAlone || kSplit == 1, "halves are for few heads");

  static constexpr int kHalf = kGdnDim / 2;  // columns behind one partial sum of the norm
  static constexpr int kHalves = kColumns / kHalf;
  static constexpr int kChannels = 2 * kGdnDim + kColumns;  // q, k and v that a block convolves
  static constexpr int kLaneChannels = 4;                   // kGdnDim / kWarp
  static constexpr int kValueLanes = kColumns / kLaneChannels;
  static constexpr int kTileRows = 12;  // pending and own rows in shared memory at once
};

template <class Config>
struct GdnDecodeShared {
  float4 conv[kGdnTaps][Config::kChannels / 4];  // weights: q, k, v channels
  float4 norm[Config::kColumns / 4];
  alignas(ops::RowSpan) std::byte span[sizeof(ops::RowSpan)];
  const std::byte* later_matrix;  // that this block fetches into the L2; may be nullptr
  float a_log, dt_bias;
  int count;  // accepted_count of the slot
  float4 query[Config::kTileRows][kGdnDim / 4];
  float4 key[Config::kTileRows][kGdnDim / 4];
  float4 value[Config::kTileRows][Config::kColumns / 4];
  float4 output[Config::kTileRows][Config::kColumns / 4];
  float4 gate[Config::kTileRows][Config::kColumns / 4];  // norm weight times act(z)
  float log_decay[Config::kTileRows];
  float decay[Config::kTileRows];
  float beta[Config::kTileRows];
  float key_query[Config::kTileRows];
  // Of a cluster only: [tile parity][half of the head]; barriers of the other block's
  // halves.
  float squares[2][2][Config::kTileRows];
  uint64_t arrived[2];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// Which part of the launch a block works on, and its rows.
template <class Config>
struct GdnPiece {
  int head, key_head;
  bool writes_keys;  // ring entries of the q and k channels
  bool writes_ring;
  const std::byte* shared_span;
  int held;   // pending rows that a slot has room for: they come first, own rows follow
  int count;  // how many of them count, not cut: staging begins before it is known

  /// Read anew like span().
  __device__ int half() const { return Config::kSplit > 1 ? cluster_rank() : 0; }
  /// Of the block, within the head.
  __device__ int first_column() const { return half() * Config::kColumns; }
  __device__ int query_channel() const { return key_head * kGdnDim; }
  __device__ int key_channel(const ops::GdnArgs& args) const {
    return (args.shape.key_heads + key_head) * kGdnDim;
  }
  __device__ int value_channel(const ops::GdnArgs& args) const {
    return 2 * args.shape.key_heads * kGdnDim + head * kGdnDim + first_column();
  }
  /// Read anew at each use, so that neither it nor addresses that follow from it occupy registers
  /// beside the matrix.
  __device__ ops::RowSpan span() const {
    const auto* stored = reinterpret_cast<const volatile ops::RowSpan*>(shared_span);
    return {.row_begin = stored->row_begin,
            .num_rows = stored->num_rows,
            .position = stored->position,
            .slot = stored->slot};
  }
};

/// Constants into shared memory. Convolution weights lie by tap, so that a lane reads its four
/// channels of a tap at once.
template <class Config>
__device__ __forceinline__ void load_constants(const ops::GdnArgs& args,
                                               const GdnPiece<Config>& piece,
                                               GdnDecodeShared<Config>& shared) {
  auto* by_tap = reinterpret_cast<float*>(shared.conv);
  for (int first = warp_id() * kWarp; first < Config::kChannels; first += Config::kThreads) {
    const int channel = first < kGdnDim       ? piece.query_channel() + first
                        : first < 2 * kGdnDim ? piece.key_channel(args) + first - kGdnDim
                                              : piece.value_channel(args) + first - 2 * kGdnDim;
    const int at = first + lane_id();
    const float4 taps =
        __ldg(reinterpret_cast<const float4*>(args.conv_weight) + channel + lane_id());
    by_tap[at] = taps.x;
    by_tap[Config::kChannels + at] = taps.y;
    by_tap[2 * Config::kChannels + at] = taps.z;
    by_tap[3 * Config::kChannels + at] = taps.w;
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < Config::kValueLanes)
    shared.norm[thread] =
        __ldg(reinterpret_cast<const float4*>(args.norm + piece.first_column()) + thread);
  if (thread == 0) {
    shared.a_log = __ldg(args.a_log + piece.head);
    shared.dt_bias = __ldg(args.dt_bias + piece.head);
  }
}

__device__ __forceinline__ float4 bf16x4_to_floats(const uint2& raw) {
  const float2 low = unpack_bf16(raw.x), high = unpack_bf16(raw.y);
  return {low.x, low.y, high.x, high.y};
}

/// SiLU of the convolution of four channels.
__device__ __forceinline__ float4 convolved(const uint2 (&inputs)[kGdnTaps], const float4* weights,
                                            int stride) {
  float4 sum = {};
#pragma unroll
  for (int tap = 0; tap < kGdnTaps; ++tap) {
    const float4 x = bf16x4_to_floats(inputs[tap]);
    const float4 w = weights[tap * stride];
    sum = {__fmaf_rn(x.x, w.x, sum.x), __fmaf_rn(x.y, w.y, sum.y), __fmaf_rn(x.z, w.z, sum.z),
           __fmaf_rn(x.w, w.w, sum.w)};
  }
  return {quick_silu(sum.x), quick_silu(sum.y), quick_silu(sum.z), quick_silu(sum.w)};
}

__device__ __forceinline__ float dot4(const float4& a, const float4& b) {
  return __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmul_rn(a.x, b.x))));
}
__device__ __forceinline__ float4 scaled(const float4& x, float factor) {
  return {__fmul_rn(x.x, factor), __fmul_rn(x.y, factor), __fmul_rn(x.z, factor),
          __fmul_rn(x.w, factor)};
}

/// One warp brings a row that an earlier launch left pending into shared memory.
template <class Config>
__device__ __forceinline__ void stage_pending_row(const ops::GdnArgs& args,
                                                  const GdnPiece<Config>& piece, int index, int row,
                                                  GdnDecodeShared<Config>& shared) {
  const ops::GdnPending layout{args.shape};
  const float* stored = pending_row(args, piece.span(), index);
  const int lane = lane_id();
  const auto* keys = reinterpret_cast<const float4*>(stored + layout.key_at(piece.head));
  const auto* values =
      reinterpret_cast<const float4*>(stored + layout.value_at(piece.head) + piece.first_column());
  shared.key[row][lane] = __ldcg(keys + lane);
  if (lane < Config::kValueLanes) shared.value[row][lane] = __ldcg(values + lane);
  if (lane == 0) {
    shared.decay[row] = expf(__ldcg(stored + layout.log_decay_at() + piece.head));
    shared.beta[row] = __ldcg(stored + layout.beta_at() + piece.head);
  }
}

/// The rows that the taps of an own row read, and where its newest inputs are kept.
struct TapRows {
  const Bf16* row[kGdnTaps];  // nullptr: before the start of the sequence
  Bf16* entry;                // nullptr: a later row of the launch takes the same place

  __device__ __forceinline__ TapRows(const ops::GdnArgs& args, const ops::RowSpan& span,
                                     int span_row) {
#pragma unroll
    for (int tap = 0; tap < kGdnTaps; ++tap)
      row[tap] = conv_inputs(args, span, span_row - (kGdnTaps - 1 - tap));
    entry = span_row < span.num_rows - args.conv_ring.slots
                ? nullptr
                : reinterpret_cast<Bf16*>(
                      ring_entry(args.conv_ring, span.slot, span.position + span_row));
  }

  /// Four channels from `channel` on.
  __device__ __forceinline__ void load(int channel, uint2 (&inputs)[kGdnTaps]) const {
#pragma unroll
    for (int tap = 0; tap < kGdnTaps; ++tap)
      inputs[tap] = row[tap] == nullptr
                        ? uint2{}
                        : __ldcg(reinterpret_cast<const uint2*>(row[tap] + channel));
  }
  __device__ __forceinline__ void keep(int channel, const uint2& newest) const {
    if (entry != nullptr) *reinterpret_cast<uint2*>(entry + channel) = newest;
  }
};

/// One warp prepares the unit key and query of an own row.
template <class Config>
__device__ __forceinline__ void stage_own_keys(const ops::GdnArgs& args,
                                               const GdnPiece<Config>& piece, int own_row, int row,
                                               GdnDecodeShared<Config>& shared) {
  constexpr float kQueryScale = 0x1.6a09e6p-4F;  // kGdnDim^-0.5
  constexpr int kStride = Config::kChannels / 4;
  const int lane = lane_id();
  const int query_channel = piece.query_channel() + lane * Config::kLaneChannels;
  const int key_channel = piece.key_channel(args) + lane * Config::kLaneChannels;
  const TapRows taps(args, piece.span(), own_row);
  uint2 queries[kGdnTaps], keys[kGdnTaps];
  taps.load(query_channel, queries);
  taps.load(key_channel, keys);
  if (piece.writes_ring && piece.writes_keys) {
    taps.keep(query_channel, queries[kGdnTaps - 1]);
    taps.keep(key_channel, keys[kGdnTaps - 1]);
  }
  const float4 query = convolved(queries, &shared.conv[0][lane], kStride);
  const float4 key = convolved(keys, &shared.conv[0][kGdnDim / 4 + lane], kStride);
  const float query_scale =
      __fmul_rn(rsqrtf(__fadd_rn(warp_sum(dot4(query, query)), kGdnNormEps)), kQueryScale);
  const float key_scale = rsqrtf(__fadd_rn(warp_sum(dot4(key, key)), kGdnNormEps));
  const float key_query = warp_sum(dot4(key, query));
  shared.query[row][lane] = scaled(query, query_scale);
  shared.key[row][lane] = scaled(key, key_scale);
  if (lane == 0) shared.key_query[row] = __fmul_rn(key_query, __fmul_rn(query_scale, key_scale));
}

/// One warp prepares the values, the gates and the output gate of an own row.
template <class Config>
__device__ __forceinline__ void stage_own_values(const ops::GdnArgs& args,
                                                 const GdnPiece<Config>& piece, int own_row,
                                                 int row, GdnDecodeShared<Config>& shared) {
  const int lane = lane_id();
  const size_t gate_at = gate_index(args, piece.span().row_begin + own_row, piece.head);
  const float a = __ldcg(args.a + gate_at), b = __ldcg(args.b + gate_at);
  if (lane < Config::kValueLanes) {
    const Bf16* zs = static_cast<const Bf16*>(args.z) + gate_at * kGdnDim + piece.first_column();
    const uint2 z = __ldcg(reinterpret_cast<const uint2*>(zs) + lane);
    const int channel = piece.value_channel(args) + lane * Config::kLaneChannels;
    const TapRows taps(args, piece.span(), own_row);
    uint2 values[kGdnTaps];
    taps.load(channel, values);
    if (piece.writes_ring) taps.keep(channel, values[kGdnTaps - 1]);
    shared.value[row][lane] =
        convolved(values, &shared.conv[0][2 * kGdnDim / 4 + lane], Config::kChannels / 4);
    const float4 opening = bf16x4_to_floats(z), norm = shared.norm[lane];
    shared.gate[row][lane] = {__fmul_rn(norm.x, output_gate(args.gate, opening.x)),
                              __fmul_rn(norm.y, output_gate(args.gate, opening.y)),
                              __fmul_rn(norm.z, output_gate(args.gate, opening.z)),
                              __fmul_rn(norm.w, output_gate(args.gate, opening.w))};
  }
  if (lane == 0) {
    const float g = log_decay(shared.a_log, a, shared.dt_bias);
    shared.log_decay[row] = g;
    shared.decay[row] = expf(g);
    shared.beta[row] = quick_sigmoid(b);
  }
}

/// Rows first .. first + rows - 1 of the launch (pending ones first) into shared memory. Own rows
/// are begun first, two tasks of a warp each. How many pending rows count may still be under way:
/// whoever has nothing else to do fetches one anyway, and the others ask for it themselves.
template <class Config>
__device__ __forceinline__ void stage_rows(const ops::GdnArgs& args, const GdnPiece<Config>& piece,
                                           int first, int rows, GdnDecodeShared<Config>& shared) {
  const int pending = min(max(piece.held - first, 0), rows);
  const int own_tasks = 2 * (rows - pending);
  for (int task = warp_id(); task < own_tasks + pending; task += Config::kWarps) {
    if (task >= own_tasks) {
      const int row = task - own_tasks;
      if (task >= Config::kWarps && first + row >= accepted_count(args, piece.span())) break;
      stage_pending_row<Config>(args, piece, first + row, row, shared);
      continue;
    }
    const int row = pending + task / 2, own_row = first + row - piece.held;
    if (task % 2 == 0)
      stage_own_keys<Config>(args, piece, own_row, row, shared);
    else
      stage_own_values<Config>(args, piece, own_row, row, shared);
  }
}

#endif

}  // namespace tessera::cuda::device
