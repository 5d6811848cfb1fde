// SPDX-License-Identifier: Apache-2.0
// Barriers that complete with the asynchronous copies of the threads that arrive (sm_90).
#pragma once

#include "cuda/device/copy.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// Arrives once every earlier copy_async of this thread has landed; returns at once. The arrival
/// is one of those that the barrier was initialised for.
__device__ __forceinline__ void arrive_after_copies(Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

#endif

}  // namespace tessera::cuda::device
