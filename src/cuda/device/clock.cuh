// SPDX-License-Identifier: Apache-2.0
// The clock that all multiprocessors share.
#pragma once

#include <cstdint>

namespace tessera::cuda::device {

/// Advances in steps of up to a microsecond.
__device__ __forceinline__ uint64_t global_nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

}  // namespace tessera::cuda::device
