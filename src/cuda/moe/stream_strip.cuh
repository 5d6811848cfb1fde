// SPDX-License-Identifier: Apache-2.0
// One warp's share of an expert tile: 16 weight rows over a slice of K, held in registers while the
// loads of the next tile are already under way.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/reduce.cuh"
#include "ops/weight.h"

namespace tessera::cuda::device {

/// Where a lane finds its two rows of a tile: weight rows g and g + 8 at its place in the slice.
/// The scales are those of the two rows, for the whole of K.
struct StripSource {
  const std::byte* low = nullptr;
  const std::byte* high = nullptr;
  const float* low_scale = nullptr;
  const float* high_scale = nullptr;
};

/// K is permuted within a chunk: a lane's 16 contiguous bytes serve as its fragments of consecutive
/// k16 steps, for weights and activations alike.
template <class Weight, int kSlice>
struct Strip {
  static constexpr int kPerLane = kVectorBytes / static_cast<int>(sizeof(Weight));
  static constexpr int kChunk = 4 * kPerLane;
  static constexpr int kChunks = kSlice / kChunk;
  static constexpr bool kScaled = sizeof(Weight) == 1;
  static_assert(kChunks * kChunk == kSlice && ops::kScaleBlock % kChunk == 0);

  uint4 low[kChunks];
  uint4 high[kChunks];
  float low_scale[kScaled ? kChunks : 1];
  float high_scale[kScaled ? kChunks : 1];

  __device__ __forceinline__ void load(int chunk, const StripSource& from, int slice_begin) {
    constexpr int kChunkBytes = kChunk * static_cast<int>(sizeof(Weight));
    low[chunk] = load_streaming(from.low + chunk * kChunkBytes);
    high[chunk] = load_streaming(from.high + chunk * kChunkBytes);
    if constexpr (kScaled) {
      const int block = (slice_begin + chunk * kChunk) / ops::kScaleBlock;
      low_scale[chunk] = __ldg(from.low_scale + block);
      high_scale[chunk] = __ldg(from.high_scale + block);
    }
  }
  __device__ __forceinline__ void load_all(const StripSource& from, int slice_begin) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) load(chunk, from, slice_begin);
  }

  /// sum[row][column] += weights x over one chunk; `x`: this lane's kPerLane activations of its
  /// column.
  __device__ __forceinline__ void multiply(int chunk, const Bf16* x, float (&sum)[4]) const {
    const uint4 &a = low[chunk], &b = high[chunk];
    const uint4 c = *reinterpret_cast<const uint4*>(x);
    if constexpr (!kScaled) {
      mma_m16n8k16(sum, {a.x, b.x, a.y, b.y}, {c.x, c.y});
      mma_m16n8k16(sum, {a.z, b.z, a.w, b.w}, {c.z, c.w});
    } else {
      // Codes are exact in BF16; the block's scale is applied to the chunk's sum.
      const uint4 d = *reinterpret_cast<const uint4*>(x + kVectorBf16);
      float part[4] = {};
      const auto step = [&part](uint32_t codes_low, uint32_t codes_high, uint32_t x_low,
                                uint32_t x_high) {
        const uint2 p = f8x4_to_bf16x4(codes_low), q = f8x4_to_bf16x4(codes_high);
        mma_m16n8k16(part, {p.x, q.x, p.y, q.y}, {x_low, x_high});
      };
      step(a.x, b.x, c.x, c.y);
      step(a.y, b.y, c.z, c.w);
      step(a.z, b.z, d.x, d.y);
      step(a.w, b.w, d.z, d.w);
      sum[0] += low_scale[chunk] * part[0];
      sum[1] += low_scale[chunk] * part[1];
      sum[2] += high_scale[chunk] * part[2];
      sum[3] += high_scale[chunk] * part[3];
    }
  }
};

}  // namespace tessera::cuda::device
