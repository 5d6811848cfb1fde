// SPDX-License-Identifier: Apache-2.0
// Brings activations into the order in which FP8 codes are multiplied (code_order.cuh).
#pragma once

#include "cuda/device/pdl.cuh"
#include "cuda/moe/code_order.cuh"

namespace tessera::cuda::device {

/// 16 values per thread; `groups` of 16 in all. Config: kThreads.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    order_for_codes(const uint4* from, uint4* to, int64_t groups) {
  wait_for_inputs();
  allow_next_kernel();
  const int64_t group = int64_t{blockIdx.x} * Config::kThreads + threadIdx.x;
  if (group >= groups) return;
  uint4 first = from[2 * group], second = from[2 * group + 1];
  split_evens(first, second);
  to[2 * group] = first;
  to[2 * group + 1] = second;
}

}  // namespace tessera::cuda::device
