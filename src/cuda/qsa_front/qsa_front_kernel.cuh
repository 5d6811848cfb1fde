// SPDX-License-Identifier: Apache-2.0
// QSA front of the released head sizes: one warp per head, eight dims per lane.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/bf16.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/qsa_front/qsa_front_plan.h"
#include "cuda/qsa_front/ring_rule.cuh"
#include "cuda/qsa_front/rope.cuh"

namespace tessera::cuda::device {

template <int kTasks>
struct FastFront : FastFrontShape {
  static constexpr int kTasksPerWarp = kTasks;
};

/// Norm weights with the one added.
struct FrontNorms {
  float q[FastFrontShape::kHeadDim];
  float k[FastFrontShape::kHeadDim];
  float index_q[FastFrontShape::kIndexDim];
  float index_k[FastFrontShape::kIndexDim];
};

/// Factors of the eight dims of this lane; the sign of the half is in `sine`.
struct Rotation {
  float cosine[kVectorBf16];
  float sine[kVectorBf16];
};

/// `angle` is that of frequency lane_id(): dims 8u.. of a head use frequencies 8 (u % 4)...
__device__ __forceinline__ Rotation spread(const Angle& angle) {
  constexpr int kHalfLanes = FastFrontShape::kRotaryDim / 2 / kVectorBf16;
  const int unit = lane_id();
  const float sign = (unit & kHalfLanes) == 0 ? -1.0F : 1.0F;
  Rotation rotation;
#pragma unroll
  for (int at = 0; at < kVectorBf16; ++at) {
    const int source = (unit & (kHalfLanes - 1)) * kVectorBf16 + at;
    rotation.cosine[at] = __shfl_sync(kAllLanes, angle.cosine, source);
    rotation.sine[at] = __shfl_sync(kAllLanes, angle.sine, source) * sign;
  }
  return rotation;
}

/// RMS1 and RoPE of a head held by kLanes lanes; `weight` points to this lane's eight.
template <int kLanes>
__device__ __forceinline__ void norm_and_rotate(float (&x)[kVectorBf16], const float* weight,
                                                float eps, const Rotation& rotation) {
  constexpr int kRotaryLanes = FastFrontShape::kRotaryDim / kVectorBf16;
  constexpr float kInverseDim = 1.0F / (kLanes * kVectorBf16);
  float squares = 0;
#pragma unroll
  for (int at = 0; at < kVectorBf16; ++at) squares += x[at] * x[at];
  const float factor = rsqrtf(warp_sum<kLanes>(squares) * kInverseDim + eps);
#pragma unroll
  for (int at = 0; at < kVectorBf16; ++at) x[at] *= factor * weight[at];
  const bool rotated = lane_id() % kLanes < kRotaryLanes;
#pragma unroll
  for (int at = 0; at < kVectorBf16; ++at) {
    const float partner = __shfl_xor_sync(kAllLanes, x[at], kRotaryLanes / 2);
    if (rotated) x[at] = x[at] * rotation.cosine[at] + partner * rotation.sine[at];
  }
}

__device__ __forceinline__ void load_vector(const Bf16* from, float (&x)[kVectorBf16]) {
  unpack_bf16x8(*reinterpret_cast<const uint4*>(from), x);
}
__device__ __forceinline__ void store_vector(Bf16* to, const float (&x)[kVectorBf16]) {
  *reinterpret_cast<uint4*>(to) = pack_bf16x8(x);
}
/// Into a page whose elements are BF16 or E4M3.
__device__ __forceinline__ void store_vector(DType dtype, std::byte* page, size_t element,
                                             const float (&x)[kVectorBf16]) {
  if (dtype == DType::kBF16)
    store_vector(reinterpret_cast<Bf16*>(page) + element, x);
  else
    *reinterpret_cast<uint2*>(page + element) = pack_f8x8(x);
}

/// One row of the launch, as the warp that works on it sees it.
struct FrontRow {
  const ops::QsaFrontArgs& args;
  const ops::RowSpan& span;
  const FrontNorms& norms;
  int row;
  int64_t token;
  Rotation rotation;

  __device__ void query(int head) const {
    constexpr int kDim = FastFrontShape::kHeadDim;
    const int64_t at = int64_t{row} * args.shape.heads + head;
    const int col = lane_id() * kVectorBf16;
    float x[kVectorBf16];
    load_vector(static_cast<const Bf16*>(args.q_gate) + at * 2 * kDim + col, x);
    norm_and_rotate<kWarp>(x, norms.q + col, args.eps, rotation);
    store_vector(static_cast<Bf16*>(args.q) + at * kDim + col, x);
  }

  /// Element of this lane in its page, which holds [kv head][token][dim].
  __device__ size_t cell(int head) const {
    return (static_cast<size_t>(head) * ops::kPageTokens +
            static_cast<size_t>(token % ops::kPageTokens)) *
               FastFrontShape::kHeadDim +
           static_cast<size_t>(lane_id() * kVectorBf16);
  }

  __device__ void key(int head) const {
    constexpr int kDim = FastFrontShape::kHeadDim;
    const int col = lane_id() * kVectorBf16;
    float x[kVectorBf16];
    load_vector(
        static_cast<const Bf16*>(args.k) + (int64_t{row} * args.shape.kv_heads + head) * kDim + col,
        x);
    norm_and_rotate<kWarp>(x, norms.k + col, args.eps, rotation);
    store_vector(args.cache.keys.dtype, page_of(args.cache.keys, span.pages, token), cell(head), x);
  }

  __device__ void value(int head) const {
    constexpr int kDim = FastFrontShape::kHeadDim;
    float x[kVectorBf16];
    load_vector(static_cast<const Bf16*>(args.v) +
                    (int64_t{row} * args.shape.kv_heads + head) * kDim + lane_id() * kVectorBf16,
                x);
    store_vector(args.cache.values.dtype, page_of(args.cache.values, span.pages, token), cell(head),
                 x);
  }

  static constexpr int kIndexLanes = FastFrontShape::kIndexDim / kVectorBf16;
  static __device__ int index_col() { return lane_id() % kIndexLanes * kVectorBf16; }

  __device__ const Bf16* index_vector(int64_t at_row, int head) const {
    return static_cast<const Bf16*>(args.index_qk) +
           (at_row * (args.shape.index_heads + 1) + head) * FastFrontShape::kIndexDim + index_col();
  }

  /// Two heads, half a warp each.
  __device__ void index_queries(int pair) const {
    const int head = 2 * pair + lane_id() / kIndexLanes;
    float x[kVectorBf16];
    load_vector(index_vector(row, head), x);
    norm_and_rotate<kIndexLanes>(x, norms.index_q + index_col(), args.eps, rotation);
    store_vector(static_cast<Bf16*>(args.index_q) +
                     (int64_t{row} * args.shape.index_heads + head) * FastFrontShape::kIndexDim +
                     index_col(),
                 x);
  }

  __device__ Bf16* ring_key(int64_t position) const {
    return reinterpret_cast<Bf16*>(ring_entry(args.cache.raw_keys, span.slot, position)) +
           index_col();
  }
  __device__ int32_t* ring_position(int64_t position) const {
    return reinterpret_cast<int32_t*>(ring_entry(args.cache.positions, span.slot, position));
  }
  __device__ int64_t row_of(int64_t position) const { return row + (position - token); }

  /// Leaves raw key and position of the launch row at `position` in the ring.
  __device__ void write_raw_key(int64_t position) const {
    if (lane_id() < kIndexLanes)
      *reinterpret_cast<uint4*>(ring_key(position)) =
          *reinterpret_cast<const uint4*>(index_vector(row_of(position), args.shape.index_heads));
  }
  __device__ void write_position(int64_t position) const {
    if (lane_id() < kAxes)
      ring_position(position)[lane_id()] = args.positions[row_of(position) * kAxes + lane_id()];
  }

  __device__ void raw_key() const {
    const RingRule rule(span, FastFrontShape::kBlock);
    if (rule.row_writes(token, args.cache.raw_keys.slots)) write_raw_key(token);
    if (rule.row_writes(token, args.cache.positions.slots)) write_position(token);
    if ((token + 1) % FastFrontShape::kBlock == 0) pooled_key(rule);
  }

  /// Key of the block that this row completes; both halves of the warp hold the same values.
  __device__ void pooled_key(const RingRule& rule) const {
    constexpr int kBlock = FastFrontShape::kBlock;
    const int64_t first = token + 1 - kBlock;
    float x[kVectorBf16] = {};
#pragma unroll
    for (int member = 0; member < kBlock; ++member) {
      const int64_t position = first + member;
      float key[kVectorBf16];
      load_vector(position < span.position ? ring_key(position)
                                           : index_vector(row_of(position), args.shape.index_heads),
                  key);
#pragma unroll
      for (int at = 0; at < kVectorBf16; ++at) x[at] += key[at];
    }
    const int32_t* start =
        first < span.position ? ring_position(first) : args.positions + row_of(first) * kAxes;
    const Angle angle = rope_angle(args.rope.inv_freq[lane_id()], start[args.rope.axis[lane_id()]],
                                   args.rope.attention_scale);
    __syncwarp();  // every lane has read the ring before its slots are written anew
    for (int64_t position = first; position < span.position; ++position) {
      const int64_t next_key = rule.successor(position, args.cache.raw_keys.slots);
      if (next_key > position) write_raw_key(next_key);
      const int64_t next_position = rule.successor(position, args.cache.positions.slots);
      if (next_position > position) write_position(next_position);
    }
#pragma unroll
    for (int at = 0; at < kVectorBf16; ++at) x[at] = round_bf16(x[at] * (1.0F / kBlock));
    norm_and_rotate<kIndexLanes>(x, norms.index_k + index_col(), args.eps, spread(angle));
    const auto block = static_cast<int>(first % ops::kPageTokens) / kBlock;
    auto* page = reinterpret_cast<Bf16*>(page_of(args.cache.index_keys, span.pages, first));
    if (lane_id() < kIndexLanes)
      store_vector(page + block * FastFrontShape::kIndexDim + index_col(), x);
  }

  /// Tasks of a row: queries, pairs of index queries, keys, values; then the raw index key.
  __device__ void run_head(int task) const {
    if (task < args.shape.heads) return query(task);
    task -= args.shape.heads;
    const int index_pairs = args.shape.index_heads / 2;
    if (task < index_pairs) return index_queries(task);
    task -= index_pairs;
    if (task < args.shape.kv_heads) return key(task);
    value(task - args.shape.kv_heads);
  }
};

template <class Config>
__global__ void __launch_bounds__(kFrontThreads, 3)
    qsa_front_fast(const __grid_constant__ ops::QsaFrontArgs args,
                   const __grid_constant__ Batch batch, const __grid_constant__ FrontPlan plan) {
  __shared__ FrontNorms norms;
  static_assert(kFrontThreads == Config::kHeadDim && kFrontThreads == 2 * Config::kIndexDim);
  const int thread = static_cast<int>(threadIdx.x);
  norms.q[thread] = 1.0F + args.q_norm[thread];
  norms.k[thread] = 1.0F + args.k_norm[thread];
  if (thread < Config::kIndexDim)
    norms.index_q[thread] = 1.0F + args.index_q_norm[thread];
  else
    norms.index_k[thread - Config::kIndexDim] =
        1.0F + args.index_k_norm[thread - Config::kIndexDim];
  const float inv_freq = args.rope.inv_freq[lane_id()];
  const int axis = args.rope.axis[lane_id()];
  __syncthreads();  // the norms are there
  wait_for_inputs();
  allow_next_kernel();

  const int warp = static_cast<int>(blockIdx.x) * kFrontWarps + warp_id();
  const int row = warp / plan.warps_per_row;
  if (row >= batch.num_rows) return;
  const ops::RowSpan span = batch.spans[batch.row_span[row]];
  const Angle angle =
      rope_angle(inv_freq, args.positions[row * kAxes + axis], args.rope.attention_scale);
  const FrontRow front{.args = args,
                       .span = span,
                       .norms = norms,
                       .row = row,
                       .token = span.position + row - span.row_begin,
                       .rotation = spread(angle)};
  const int end = plan.first_task + plan.tasks_per_row;
  const int first_task = plan.first_task + warp % plan.warps_per_row * Config::kTasksPerWarp;
  const int last_task = min(first_task + Config::kTasksPerWarp, end) - 1;
#pragma unroll 1
  for (int task = first_task; task < last_task; ++task) front.run_head(task);
  if (last_task + 1 < end)
    front.run_head(last_task);
  else
    front.raw_key();
}

}  // namespace tessera::cuda::device
