// SPDX-License-Identifier: Apache-2.0
// Barriers between some warps of a block.
#pragma once

namespace tessera::cuda::device {

/// Waits until `threads` threads (whole warps) of the block have called this with `id`, 1..15;
/// barrier 0 is __syncthreads. Orders their accesses to memory like __syncthreads.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace tessera::cuda::device
