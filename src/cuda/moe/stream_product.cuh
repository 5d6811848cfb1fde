// SPDX-License-Identifier: Apache-2.0
// What a warp of the streaming expert kernel computes: 16 weight rows times a slice of K, for the
// eight rows of a group as the columns of m16n8k16 products.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/moe/code_order.cuh"
#include "cuda/moe/stream_ring.cuh"

namespace tessera::cuda::device {

/// Column k of the product instruction is not column k of the matrix: a lane's 16 bytes of a weight
/// row serve as its pieces of several instructions, and the activations are read in the same order.
template <class Weight>
struct StreamSlice {
  using Geometry = moe::StreamGeometry;
  static constexpr int kElements = Geometry::kSliceBytes / static_cast<int>(sizeof(Weight));
  static constexpr int kVectors = kElements / kWarp;  // 16-byte reads of an activation row
  static constexpr int kLaneElements = kVectorBytes / static_cast<int>(sizeof(Weight));
  static constexpr bool kScaled = sizeof(Weight) == 1;

  /// First element of this lane's vector `index` of an activation row, within the slice.
  static __device__ __forceinline__ int element(int index) {
    constexpr int kPerHalf = kVectors / 2;
    return index / kPerHalf * (kElements / 2) + lane_id() % 4 * kLaneElements +
           index % kPerHalf * kVectorBf16;
  }
};

/// The most vectors any type of weight needs.
inline constexpr int kColumnVectors = StreamSlice<F8>::kVectors;
using ColumnSlice = uint4[kColumnVectors];

/// `x`: the row of this lane's column, `slice` of K.
template <class Weight>
__device__ __forceinline__ void load_column(const Bf16* x, int slice, ColumnSlice& out) {
  using Slice = StreamSlice<Weight>;
#pragma unroll
  for (int index = 0; index < Slice::kVectors; ++index)
    out[index] =
        *reinterpret_cast<const uint4*>(x + slice * Slice::kElements + Slice::element(index));
}

__device__ __forceinline__ void multiply_bf16(const uint4& top, const uint4& bottom, const uint4& x,
                                              float (&sum)[4]) {
  mma_m16n8k16(sum, {top.x, bottom.x, top.y, bottom.y}, {x.x, x.y});
  mma_m16n8k16(sum, {top.z, bottom.z, top.w, bottom.w}, {x.z, x.w});
}
/// Activations in the order of widened codes: of every four the even ones, then the odd ones.
template <class Weight>
__device__ __forceinline__ void order_column(ColumnSlice& column) {
  using Slice = StreamSlice<Weight>;
  constexpr uint32_t kLowHalves = 0x5410, kHighHalves = 0x7632;
  if constexpr (Slice::kScaled) {
#pragma unroll
    for (int index = 0; index < Slice::kVectors; ++index) {
      const uint4 x = column[index];
      column[index] = {__byte_perm(x.x, x.y, kLowHalves), __byte_perm(x.x, x.y, kHighHalves),
                       __byte_perm(x.z, x.w, kLowHalves), __byte_perm(x.z, x.w, kHighHalves)};
    }
  }
}
__device__ __forceinline__ void multiply_codes(uint32_t top, uint32_t bottom, uint32_t x_low,
                                               uint32_t x_high, float (&sum)[4]) {
  const uint2 a = widen_codes(top), b = widen_codes(bottom);
  mma_m16n8k16(sum, {a.x, b.x, a.y, b.y}, {x_low, x_high});
}

/// sum += one stage times the activations of its slice. `scales`: of the halves of the tile (FP8).
template <class Weight>
__device__ __forceinline__ void multiply_stage(const std::byte* stage, const float* scales,
                                               const ColumnSlice& x, float (&sum)[4]) {
  constexpr int kLower = moe::StreamGeometry::kHalfRows * moe::StreamGeometry::kSliceBytes;
  const int row = lane_id() / 4, quad = lane_id() % 4;
  uint4 top[2], bottom[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::byte* at = stage + stage_place(row, half * 4 + quad);
    top[half] = *reinterpret_cast<const uint4*>(at);
    bottom[half] = *reinterpret_cast<const uint4*>(at + kLower);
  }
  if constexpr (!StreamSlice<Weight>::kScaled) {
    multiply_bf16(top[0], bottom[0], x[0], sum);
    multiply_bf16(top[1], bottom[1], x[1], sum);
  } else {
    // The block's scale is applied to the slice's sum; two chains of products hide their latency.
    float part[2][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 &a = top[half], &b = bottom[half];
      const uint4 &c = x[2 * half], &d = x[2 * half + 1];
      multiply_codes(a.x, b.x, c.x, c.y, part[half]);
      multiply_codes(a.y, b.y, c.z, c.w, part[half]);
      multiply_codes(a.z, b.z, d.x, d.y, part[half]);
      multiply_codes(a.w, b.w, d.z, d.w, part[half]);
    }
    const float low = scales[0], high = scales[1];
    sum[0] += low * (part[0][0] + part[1][0]);
    sum[1] += low * (part[0][1] + part[1][1]);
    sum[2] += high * (part[0][2] + part[1][2]);
    sum[3] += high * (part[0][3] + part[1][3]);
  }
}

using PanelSums = float[moe::StreamGeometry::kTiles][4];

/// This warp's share of a panel. `x`: the row of its lane's column; `ahead` holds the activations
/// of the warp's first slice.
template <class Config, class Weight>
__device__ __forceinline__ void multiply_panel(const moe::StreamSplit& split, int tiles,
                                               const StreamRing<Config>& ring,
                                               StreamFeed<Config>& feed, const Bf16* x,
                                               ColumnSlice& ahead, PanelSums& sums) {
  using Geometry = moe::StreamGeometry;
  for (int slice = warp_id() % split.per_team; slice < split.slices; slice += split.per_team) {
    ColumnSlice now;
#pragma unroll
    for (int index = 0; index < kColumnVectors; ++index) now[index] = ahead[index];
    order_column<Weight>(now);
    if (slice + split.per_team < split.slices)
      load_column<Weight>(x, slice + split.per_team, ahead);
#pragma unroll
    for (int tile = 0; tile < Geometry::kTiles; ++tile) {
      if (tile >= tiles) break;
      const int stage = feed.take();
      multiply_stage<Weight>(ring.stages[warp_id()][stage], ring.scales[warp_id()][stage], now,
                             sums[tile]);
    }
  }
}

}  // namespace tessera::cuda::device
