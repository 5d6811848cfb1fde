// SPDX-License-Identifier: Apache-2.0
// Fetches into the second-level cache what another block will soon read (sm_90).
#pragma once

#include <cstdint>

namespace tessera::cuda::device {

/// `bytes` (a multiple of 16, 16-byte aligned) by the copy engine, one thread asks. A hint: nobody
/// waits for it, and it changes no memory. Nothing below sm_90.
__device__ __forceinline__ void prefetch_bulk(const void* global, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
#endif
}

}  // namespace tessera::cuda::device
