// SPDX-License-Identifier: Apache-2.0
// What a warp of the streaming expert kernel computes: 16 weight rows times a slice of K, for the
// eight rows of a group as the columns of m16n8k16 products.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/moe/code_order.cuh"
#include "cuda/moe/stream_ring.cuh"

namespace tessera::cuda::device {

/// Column k of the product instruction is not column k of the matrix: a lane's 32 bytes of a weight
/// row serve as its pieces of several instructions, and the activations are read in the same order.
template <class Weight>
struct StreamSlice {
  using Geometry = moe::StreamGeometry;
  static constexpr int kElements = Geometry::kSliceBytes / static_cast<int>(sizeof(Weight));
  static constexpr int kVectors = kElements / kWarp;  // 16-byte reads of an activation row
  static constexpr int kHeld = Geometry::kHeldVectors / kVectors;  // slices whose activations fit
  static constexpr bool kScaled = sizeof(Weight) == 1;
};

/// Activations of this lane's column: of every slice of its warp, for all tiles of a panel.
using HeldColumn = uint4[moe::StreamGeometry::kHeldVectors];

/// `x`: the row of this lane's column; `slice`: the first one of its warp.
template <class Weight>
__device__ __forceinline__ void load_column(const Bf16* x, const moe::StreamSplit& split, int slice,
                                            HeldColumn& out) {
  using Slice = StreamSlice<Weight>;
  x += slice * Slice::kElements + lane_id() % 4 * (Slice::kElements / 4);
#pragma unroll
  for (int held = 0; held < Slice::kHeld; ++held) {
    if (slice + held * split.per_team >= split.slices) break;
#pragma unroll
    for (int index = 0; index < Slice::kVectors; ++index)
      out[held * Slice::kVectors + index] = *reinterpret_cast<const uint4*>(
          x + held * split.per_team * Slice::kElements + index * kVectorBf16);
  }
}

__device__ __forceinline__ void multiply_bf16(const uint4& top, const uint4& bottom, const uint4& x,
                                              float (&sum)[4]) {
  mma_m16n8k16(sum, {top.x, bottom.x, top.y, bottom.y}, {x.x, x.y});
  mma_m16n8k16(sum, {top.z, bottom.z, top.w, bottom.w}, {x.z, x.w});
}
/// Activations in the order of widened codes: of every four the even ones, then the odd ones.
template <class Weight>
__device__ __forceinline__ void order_column(HeldColumn& column) {
  constexpr uint32_t kLowHalves = 0x5410, kHighHalves = 0x7632;
  if constexpr (StreamSlice<Weight>::kScaled) {
#pragma unroll
    for (uint4& held : column) {
      const uint4 x = held;
      held = {__byte_perm(x.x, x.y, kLowHalves), __byte_perm(x.x, x.y, kHighHalves),
              __byte_perm(x.z, x.w, kLowHalves), __byte_perm(x.z, x.w, kHighHalves)};
    }
  }
}
__device__ __forceinline__ void multiply_codes(uint32_t top, uint32_t bottom, uint32_t x_low,
                                               uint32_t x_high, float (&sum)[4]) {
  const uint2 a = widen_codes(top), b = widen_codes(bottom);
  mma_m16n8k16(sum, {a.x, b.x, a.y, b.y}, {x_low, x_high});
}

/// sum += 16 weight rows times the activations `x`, over this warp's slice of a stage, whose halves
/// begin at `top` and `bottom`. `scale`: of the low half, kSetWarps before that of the high one
/// (FP8). Neighbouring lines are swizzled, so that eight lanes hit all banks.
template <class Weight>
__device__ __forceinline__ void multiply_slice(const std::byte* top, const std::byte* bottom,
                                               const uint4* x, const float* scale,
                                               float (&sum)[4]) {
  using Slice = StreamSlice<Weight>;
  const int row = lane_id() / 4, quad = lane_id() % 4;
  const int line = row * moe::StreamGeometry::kSliceBytes;
  [[maybe_unused]] float part[4] = {};
#pragma unroll
  for (int piece = 0; piece < 2; ++piece) {
    const int at = line + ((2 * quad + piece) ^ row) * kVectorBytes;
    const uint4 a = *reinterpret_cast<const uint4*>(top + at);
    const uint4 b = *reinterpret_cast<const uint4*>(bottom + at);
    if constexpr (Slice::kScaled) {
      const uint4 &c = x[2 * piece], &d = x[2 * piece + 1];
      multiply_codes(a.x, b.x, c.x, c.y, part);
      multiply_codes(a.y, b.y, c.z, c.w, part);
      multiply_codes(a.z, b.z, d.x, d.y, part);
      multiply_codes(a.w, b.w, d.z, d.w, part);
    } else {
      multiply_bf16(a, b, x[piece], sum);
    }
  }
  if constexpr (Slice::kScaled) {
    // The block's scale is applied to the slice's sum.
    const float low = scale[0], high = scale[moe::StreamGeometry::kSetWarps];
    sum[0] += low * part[0];
    sum[1] += low * part[1];
    sum[2] += high * part[2];
    sum[3] += high * part[3];
  }
}

}  // namespace tessera::cuda::device
