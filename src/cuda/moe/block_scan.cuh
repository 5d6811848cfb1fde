// SPDX-License-Identifier: Apache-2.0
// Prefix sums of counts over a block.
#pragma once

#include "cuda/device/reduce.cuh"

namespace tessera::cuda::device {

/// Sum of the values of all lower threads. `warp_sums` holds one number per warp and is free again
/// after the next barrier. All threads.
template <int kThreads>
__device__ __forceinline__ int exclusive_sum(int value, int* warp_sums) {
  int up_to = value;  // inclusive sum over the warp
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int before = __shfl_up_sync(kAllLanes, up_to, distance);
    if (lane_id() >= distance) up_to += before;
  }
  __syncthreads();  // readers of an earlier call are done with warp_sums
  if (lane_id() == kWarp - 1) warp_sums[warp_id()] = up_to;
  __syncthreads();  // every warp's sum is there
  int total = up_to - value;
  for (int warp = 0; warp < warp_id(); ++warp) total += warp_sums[warp];
  return total;
}

}  // namespace tessera::cuda::device
