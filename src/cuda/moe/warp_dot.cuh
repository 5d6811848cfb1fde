// SPDX-License-Identifier: Apache-2.0
// Dot product of a BF16 row with a weight row of any type and length, by one warp.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/reduce.cuh"
#include "ops/weight.h"

namespace tessera::cuda::device {

/// One row of a weight; `scale` holds one value per ops::kScaleBlock elements (FP8 only).
template <class Weight>
struct WeightRow {
  const Weight* data = nullptr;
  const float* scale = nullptr;

  __device__ __forceinline__ float at(int index) const {
    if constexpr (sizeof(Weight) == 1)
      return to_float(data[index]) * scale[index / ops::kScaleBlock];
    else
      return to_float(data[index]);
  }
};

/// Row `row` of a matrix [.., depth].
template <class Weight>
__device__ __forceinline__ WeightRow<Weight> weight_row(const void* data, const float* scale,
                                                        int scale_cols, int row, int depth) {
  return {static_cast<const Weight*>(data) + static_cast<size_t>(row) * static_cast<size_t>(depth),
          sizeof(Weight) == 1 ? scale + row / ops::kScaleBlock * scale_cols : nullptr};
}

/// Every lane gets the sum; its order depends on the length alone. BF16 rows whose length is a
/// multiple of kVectorBf16 are 16-byte aligned, as their bases are.
template <class Weight>
__device__ __forceinline__ float warp_dot(const Bf16* x, const WeightRow<Weight>& row, int depth) {
  float sum = 0;
  if constexpr (sizeof(Weight) == sizeof(Bf16)) {
    if (depth % kVectorBf16 == 0) {
      for (int at = lane_id() * kVectorBf16; at < depth; at += kWarp * kVectorBf16) {
        float a[kVectorBf16], b[kVectorBf16];
        unpack_bf16x8(*reinterpret_cast<const uint4*>(x + at), a);
        unpack_bf16x8(*reinterpret_cast<const uint4*>(row.data + at), b);
#pragma unroll
        for (int index = 0; index < kVectorBf16; ++index) sum += a[index] * b[index];
      }
      return warp_sum(sum);
    }
  }
  for (int at = lane_id(); at < depth; at += kWarp) sum += to_float(x[at]) * row.at(at);
  return warp_sum(sum);
}

}  // namespace tessera::cuda::device
