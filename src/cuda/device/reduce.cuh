// SPDX-License-Identifier: Apache-2.0
// Reductions in a fixed order: the same bits in every run.
#pragma once

#include <cstdint>

namespace tessera::cuda::device {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFU;

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / kWarp; }

/// Butterfly over kWidth neighbouring lanes (a power of two): every lane gets the sum.
template <int kWidth = kWarp>
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = kWidth / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
template <int kWidth = kWarp>
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = kWidth / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

/// Sum over the block, in every thread. `scratch` holds one float per warp and is free again after
/// the next barrier. All threads of the block take part.
template <int kThreads>
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kThreads % kWarp == 0 && kWarps <= kWarp);
  value = warp_sum(value);
  if constexpr (kWarps == 1) return value;
  __syncthreads();  // readers of an earlier call are done with scratch
  if (lane_id() == 0) scratch[warp_id()] = value;
  __syncthreads();  // every warp's sum is there
  float total = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += scratch[warp];
  return total;
}

}  // namespace tessera::cuda::device
