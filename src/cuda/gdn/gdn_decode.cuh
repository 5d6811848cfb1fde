// SPDX-License-Identifier: Apache-2.0
// GDN decode and verify in one kernel (sm_90a): a block, or a cluster of two, takes one value head
// of one sequence. Its matrix stays in registers from the one load to the one store, while accepted
// rows of the last verify launch are replayed and the rows of this launch follow.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/gdn/gdn_math.cuh"
#include "cuda/gdn/gdn_plan.h"
#include "cuda/gdn/gdn_step.cuh"

namespace tessera::cuda::device {

template <int kBlocksPerHead>
struct GdnDecode {
  static constexpr int kSplit = kBlocksPerHead;
  static constexpr int kColumns = kGdnDim / kSplit;  // value dims of a block
  static constexpr int kWarps = kColumns / DeltaTile::kColumns;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kBlocksPerSm = 2 * kSplit;  // 128 registers a thread

  static constexpr int kHalf = kGdnDim / 2;  // columns behind one partial sum of the norm
  static constexpr int kHalves = kColumns / kHalf;
  static constexpr int kChannels = 2 * kGdnDim + kColumns;  // q, k and v that a block convolves
  static constexpr int kLaneChannels = 4;                   // kGdnDim / kWarp
  static constexpr int kValueLanes = kColumns / kLaneChannels;
  static constexpr int kTileRows = 12;  // replayed and own rows in shared memory at once
};

template <class Config>
struct GdnDecodeShared {
  float4 conv[kGdnTaps][Config::kChannels / 4];  // weights: q, k, v channels
  float4 norm[Config::kColumns / 4];
  alignas(ops::RowSpan) std::byte span[sizeof(ops::RowSpan)];
  float a_log, dt_bias;
  float4 query[Config::kTileRows][kGdnDim / 4];
  float4 key[Config::kTileRows][kGdnDim / 4];
  float4 value[Config::kTileRows][Config::kColumns / 4];  // v, then o of the same row
  float4 gate[Config::kTileRows][Config::kColumns / 4];   // norm weight times act(z)
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
  int head, key_head, half;
  int first_column;  // of the block, within the head
  bool writes_keys;  // ring entries of the q and k channels
  bool writes_ring;
  const std::byte* shared_span;
  int replayed;  // rows before the own rows

  __device__ int query_channel() const { return key_head * kGdnDim; }
  __device__ int key_channel(const ops::GdnArgs& args) const {
    return (args.shape.key_heads + key_head) * kGdnDim;
  }
  __device__ int value_channel(const ops::GdnArgs& args) const {
    return 2 * args.shape.key_heads * kGdnDim + head * kGdnDim + first_column;
  }
  __device__ bool is_own(int index) const { return index >= replayed; }
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
  for (int at = static_cast<int>(threadIdx.x); at < Config::kChannels; at += Config::kThreads) {
    const int channel = at < kGdnDim       ? piece.query_channel() + at
                        : at < 2 * kGdnDim ? piece.key_channel(args) + at - kGdnDim
                                           : piece.value_channel(args) + at - 2 * kGdnDim;
    const float4 taps = __ldg(reinterpret_cast<const float4*>(args.conv_weight) + channel);
    by_tap[at] = taps.x;
    by_tap[Config::kChannels + at] = taps.y;
    by_tap[2 * Config::kChannels + at] = taps.z;
    by_tap[3 * Config::kChannels + at] = taps.w;
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < Config::kValueLanes)
    shared.norm[thread] =
        __ldg(reinterpret_cast<const float4*>(args.norm + piece.first_column) + thread);
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
      reinterpret_cast<const float4*>(stored + layout.value_at(piece.head) + piece.first_column);
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
                                               const GdnPiece<Config>& piece, int index, int row,
                                               GdnDecodeShared<Config>& shared) {
  constexpr float kQueryScale = 0x1.6a09e6p-4F;  // kGdnDim^-0.5
  constexpr int kStride = Config::kChannels / 4;
  const int lane = lane_id();
  const int query_channel = piece.query_channel() + lane * Config::kLaneChannels;
  const int key_channel = piece.key_channel(args) + lane * Config::kLaneChannels;
  const TapRows taps(args, piece.span(), index - piece.replayed);
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
                                                 const GdnPiece<Config>& piece, int index, int row,
                                                 GdnDecodeShared<Config>& shared) {
  const int lane = lane_id();
  const size_t gate_at =
      gate_index(args, piece.span().row_begin + index - piece.replayed, piece.head);
  const float a = __ldcg(args.a + gate_at), b = __ldcg(args.b + gate_at);
  if (lane < Config::kValueLanes) {
    const Bf16* zs = static_cast<const Bf16*>(args.z) + gate_at * kGdnDim + piece.first_column;
    const uint2 z = __ldcg(reinterpret_cast<const uint2*>(zs) + lane);
    const int channel = piece.value_channel(args) + lane * Config::kLaneChannels;
    const TapRows taps(args, piece.span(), index - piece.replayed);
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

/// Sum of squares of a row's output over the columns of half `half` of this block.
template <class Config>
__device__ __forceinline__ float half_squares(const GdnDecodeShared<Config>& shared, int row,
                                              int half) {
  const float2 o = reinterpret_cast<const float2*>(shared.value[row])[half * kWarp + lane_id()];
  return warp_sum(__fmaf_rn(o.x, o.x, __fmul_rn(o.y, o.y)));
}

/// Gated norm of the own rows of a tile. The two halves of a head are added in one order, whether
/// they lie in one block or in two.
template <class Config>
__device__ __forceinline__ void finish_rows(const ops::GdnArgs& args, const GdnPiece<Config>& piece,
                                            int first, int rows, GdnDecodeShared<Config>& shared) {
  const int lane = lane_id();
  const int own_rows = rows - max(0, piece.replayed - first);
  if (own_rows <= 0) return;
  const int own_begin = rows - own_rows + warp_id();
  // Which tile with own rows this is; a block may be one ahead of the other one of its cluster.
  const int own_tile = first / Config::kTileRows - piece.replayed / Config::kTileRows;
  const int parity = own_tile % 2;
  __syncthreads();  // every warp's columns of o are there
  if constexpr (Config::kSplit > 1) {
    // Each block sends its half of every row to the other one and waits for as many.
    uint64_t* arrived = &shared.arrived[parity];
    const int other = 1 - piece.half;
    if (threadIdx.x == 0)
      arrive_expect(arrived, static_cast<uint32_t>(own_rows) * uint32_t{sizeof(float)});
    for (int row = own_begin; row < rows; row += Config::kWarps) {
      const float squares = half_squares<Config>(shared, row, 0);
      float* place = &shared.squares[parity][piece.half][row];
      if (lane == 0) {
        *place = squares;
        store_remote_async(remote_address(place, other), squares, remote_address(arrived, other));
      }
    }
    __syncwarp();  // the own halves of this warp's rows are there
    wait_barrier(arrived, static_cast<uint32_t>(own_tile / 2) % 2);
  }
  for (int row = own_begin; row < rows; row += Config::kWarps) {
    float total;
    if constexpr (Config::kSplit > 1)
      total = __fadd_rn(shared.squares[parity][0][row], shared.squares[parity][1][row]);
    else
      total = __fadd_rn(half_squares<Config>(shared, row, 0), half_squares<Config>(shared, row, 1));
    const float factor = rsqrtf(__fmaf_rn(total, 1.0F / kGdnDim, args.eps));
    const int launch_row = piece.span().row_begin + first + row - piece.replayed;
    Bf16* out = static_cast<Bf16*>(args.out) + gate_index(args, launch_row, piece.head) * kGdnDim +
                piece.first_column;
#pragma unroll
    for (int half = 0; half < Config::kHalves; ++half) {
      const int at = half * kWarp + lane;
      const float2 o = reinterpret_cast<const float2*>(shared.value[row])[at];
      const float2 gate = reinterpret_cast<const float2*>(shared.gate[row])[at];
      reinterpret_cast<uint32_t*>(out)[at] =
          pack_bf16(__fmul_rn(round_bf16(__fmul_rn(o.x, factor)), gate.x),
                    __fmul_rn(round_bf16(__fmul_rn(o.y, factor)), gate.y));
    }
  }
}

/// Leaves v of the own rows of a tile pending. The columns are read by this block alone, and no row
/// that an own row could overwrite is still unread: replayed rows are staged first.
template <class Config>
__device__ __forceinline__ void store_pending_values(const ops::GdnArgs& args,
                                                     const GdnPiece<Config>& piece, int first,
                                                     int rows,
                                                     const GdnDecodeShared<Config>& shared) {
  const ops::GdnPending layout{args.shape};
  const size_t at = layout.value_at(piece.head) + static_cast<size_t>(piece.first_column);
  const int lane = lane_id();
  for (int row = max(0, piece.replayed - first) + warp_id(); row < rows; row += Config::kWarps) {
    const int index = first + row - piece.replayed;
    if (index >= args.pending_rows || lane >= Config::kValueLanes) continue;
    reinterpret_cast<float4*>(pending_row(args, piece.span(), index) + at)[lane] =
        shared.value[row][lane];
  }
}

/// The same for k, g and beta, which both blocks of a cluster read: only after a barrier between
/// them that follows their reads.
template <class Config>
__device__ __forceinline__ void store_pending_keys(const ops::GdnArgs& args,
                                                   const GdnPiece<Config>& piece, int first,
                                                   int rows,
                                                   const GdnDecodeShared<Config>& shared) {
  if (piece.half != 0) return;
  const ops::GdnPending layout{args.shape};
  const int lane = lane_id();
  for (int row = max(0, piece.replayed - first) + warp_id(); row < rows; row += Config::kWarps) {
    const int index = first + row - piece.replayed;
    if (index >= args.pending_rows) continue;
    float* stored = pending_row(args, piece.span(), index);
    reinterpret_cast<float4*>(stored + layout.key_at(piece.head))[lane] = shared.key[row][lane];
    if (lane == 0) {
      stored[layout.log_decay_at() + static_cast<size_t>(piece.head)] = shared.log_decay[row];
      stored[layout.beta_at() + static_cast<size_t>(piece.head)] = shared.beta[row];
    }
  }
}

#endif

/// Grid: spans x value heads x kSplit. `writes_ring` is false when a later launch stores the rows.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    gdn_decode(const ops::GdnArgs args, const Batch batch, const bool writes_ring) {
#if __CUDA_ARCH__ >= 900
  __shared__ GdnDecodeShared<Config> shared;
  const int heads = args.shape.value_heads;
  const int heads_per_key = heads / args.shape.key_heads;
  const int span_head = static_cast<int>(blockIdx.x) / Config::kSplit;
  GdnPiece<Config> piece;
  piece.shared_span = shared.span;
  piece.half = static_cast<int>(blockIdx.x) % Config::kSplit;
  piece.head = span_head % heads;
  piece.key_head = piece.head / heads_per_key;
  piece.first_column = piece.half * Config::kColumns;
  piece.writes_ring = writes_ring;
  piece.writes_keys = piece.half == 0 && piece.head % heads_per_key == 0;

  if constexpr (Config::kSplit > 1) {
    if (threadIdx.x == 0) {
      init_barrier(&shared.arrived[0], 1);
      init_barrier(&shared.arrived[1], 1);
      fence_barrier_init();
    }
    __syncwarp();              // the first warp arrives after its first lane
    cluster_arrive_relaxed();  // this block runs and has its barriers: the other may write here
  }
  load_constants<Config>(args, piece, shared);
  wait_for_inputs();
  const ops::RowSpan span = batch.spans[span_head / heads];
  // All fields are read before any is judged.
  if (static_cast<int>(span.slot == nullptr) |
      (static_cast<int>(span.num_rows == 0) & static_cast<int>(!args.verify)))
    return;
  if (threadIdx.x == 0) *reinterpret_cast<ops::RowSpan*>(shared.span) = span;

  float* cells =
      DeltaTile::origin<kGdnDim>(reinterpret_cast<float*>(span.slot + args.matrix_offset) +
                                 static_cast<size_t>(piece.head) * kGdnDim * kGdnDim +
                                 piece.first_column + warp_id() * DeltaTile::kColumns);
  DeltaTile tile;
  tile.load<kGdnDim>(cells);
  piece.replayed = args.verify ? accepted_rows(args, span) : 0;
  const int total = piece.replayed + span.num_rows;
  const int stored_after = args.verify ? piece.replayed : total;  // rows in the stored matrix
  __syncthreads();                                   // the constants and the span are there
  if constexpr (Config::kSplit > 1) cluster_wait();  // the other block runs

  for (int first = 0; first < total; first += Config::kTileRows) {
    const int rows = min(Config::kTileRows, total - first);
    if (first > 0) __syncthreads();  // the last tile is read
    // A pending row is one task of a warp, an own row is two.
    const int pending = min(max(piece.replayed - first, 0), rows);
    for (int task = warp_id(); task < 2 * rows - pending; task += Config::kWarps) {
      const int row = task < pending ? task : (task + pending) / 2;
      if (task < pending)
        stage_pending_row<Config>(args, piece, first + row, row, shared);
      else if ((task + pending) % 2 == 0)
        stage_own_keys<Config>(args, piece, first + row, row, shared);
      else
        stage_own_values<Config>(args, piece, first + row, row, shared);
    }
    if (first == 0) allow_next_kernel();
    __syncthreads();  // the rows of the tile are there
    if (args.verify) {
      store_pending_values<Config>(args, piece, first, rows, shared);
      __syncthreads();  // v is read before the steps replace it by o
    }

    for (int row = 0; row < rows; ++row) {
      float* values = reinterpret_cast<float*>(shared.value[row]) + warp_id() * DeltaTile::kColumns;
      const DeltaToken token{.key = reinterpret_cast<const float*>(shared.key[row]),
                             .query = reinterpret_cast<const float*>(shared.query[row]),
                             .value = values,
                             .decay = shared.decay[row],
                             .beta = shared.beta[row],
                             .key_query = shared.key_query[row]};
      if (piece.is_own(first + row))
        delta_step<false>(tile, token);
      else
        delta_step<true>(tile, token);
      if (first + row + 1 == stored_after) tile.store<kGdnDim>(cells);
    }
    finish_rows<Config>(args, piece, first, rows, shared);
    if (args.verify) store_pending_keys<Config>(args, piece, first, rows, shared);
  }
#endif
}

}  // namespace tessera::cuda::device
