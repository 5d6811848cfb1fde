// SPDX-License-Identifier: Apache-2.0
// Loads of scattered pieces of caches straight into registers, through the first-level cache, and
// prefetches into the second-level cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::cuda::device {

/// 16 bytes, kept in the first-level cache: neighbouring warps read the same pieces soon. Stays in
/// program order among other asynchronous or tensor-core instructions, so that loads stay ahead.
__device__ __forceinline__ void gather_vector(uint4& value, const std::byte* global) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(global));
}
/// 8 bytes.
__device__ __forceinline__ void gather_vector(uint2& value, const std::byte* global) {
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "l"(global));
}

/// The 128 bytes around an address into the second-level cache.
__device__ __forceinline__ void prefetch_line(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}

}  // namespace tessera::cuda::device
