// SPDX-License-Identifier: Apache-2.0
// A barrier over all blocks of a grid that are resident together. One counter in device memory only
// ever grows, so launches that follow each other share it without a reset.
#pragma once

#include <cstdint>

namespace tessera::cuda::device {

/// One thread of each block, after a block barrier: publishes what the block wrote. Returns what
/// grid_wait waits for. `blocks` is the size of the grid, a power of two so that the counter may
/// wrap; every launch that uses the counter has that size.
__device__ __forceinline__ uint32_t grid_arrive(uint32_t* counter, uint32_t blocks) {
  uint32_t ticket;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], 1;"
               : "=r"(ticket)
               : "l"(counter)
               : "memory");
  return (ticket & ~(blocks - 1)) + blocks;
}

/// The same thread; a block barrier must follow before others read what was published.
__device__ __forceinline__ void grid_wait(const uint32_t* counter, uint32_t target) {
  uint32_t arrived;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
  } while (static_cast<int32_t>(arrived - target) < 0);
}

/// The same for any number of blocks: a counter of 64 bits never wraps.
__device__ __forceinline__ uint64_t grid_arrive(uint64_t* counter, uint32_t blocks) {
  uint64_t ticket;
  asm volatile("atom.add.release.gpu.global.u64 %0, [%1], 1;"
               : "=l"(ticket)
               : "l"(counter)
               : "memory");
  return (ticket / blocks + 1) * blocks;
}
__device__ __forceinline__ void grid_wait(const uint64_t* counter, uint64_t target) {
  uint64_t arrived;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(arrived) : "l"(counter) : "memory");
  } while (arrived < target);
}

}  // namespace tessera::cuda::device
