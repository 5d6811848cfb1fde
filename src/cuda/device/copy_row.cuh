// SPDX-License-Identifier: Apache-2.0
// Copy of a row of activations by a block.
#pragma once

#include "cuda/device/bf16.cuh"

namespace tessera::cuda::device {

/// All threads of the block together; 16 bytes at a time where both ends allow it.
template <class Config>
__device__ __forceinline__ void copy_row(Bf16* to, const Bf16* from, int width) {
  const auto address = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  const auto thread = static_cast<int>(threadIdx.x);
  if (address % kVectorBytes == 0 && width % kVectorBf16 == 0) {
    for (int index = thread; index < width / kVectorBf16; index += Config::kThreads)
      reinterpret_cast<uint4*>(to)[index] = reinterpret_cast<const uint4*>(from)[index];
    return;
  }
  for (int index = thread; index < width; index += Config::kThreads) to[index] = from[index];
}

}  // namespace tessera::cuda::device
