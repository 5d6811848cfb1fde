// SPDX-License-Identifier: Apache-2.0
// Values handed from block to block through device memory without a barrier: a word is zero until
// it is written and no written word is zero, so a value is its own flag. One trip through the L2
// instead of the three of data, counter and data again. All blocks must be resident together.
#pragma once

#include <cstdint>

namespace tessera::cuda::device {

/// Past the first-level cache. Each of the four words is read at once, not all together.
__device__ __forceinline__ uint4 load_handover(const void* global) {
  uint4 words;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(global)
               : "memory");
  return words;
}
__device__ __forceinline__ uint32_t load_handover_word(const void* global) {
  uint32_t word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(global) : "memory");
  return word;
}
__device__ __forceinline__ void store_handover(void* global, const uint4& words) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ __forceinline__ void store_handover_word(void* global, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(global), "r"(word) : "memory");
}

__device__ __forceinline__ bool all_written(const uint4& words) {
  return words.x != 0 && words.y != 0 && words.z != 0 && words.w != 0;
}

/// The bits of a value; those of -0 for +0, which adds and multiplies to the same results.
__device__ __forceinline__ uint32_t handover_word(float value) {
  constexpr uint32_t kMinusZero = 0x80000000U;
  const uint32_t bits = __float_as_uint(value);
  return bits == 0 ? kMinusZero : bits;
}
/// The same for two packed BF16. Half a word is never zero either.
__device__ __forceinline__ uint32_t handover_pair(uint32_t pair) {
  constexpr uint32_t kLowHalf = 0xFFFFU, kLowMinusZero = 0x8000U, kHighMinusZero = 0x80000000U;
  if ((pair & kLowHalf) == 0) pair |= kLowMinusZero;
  if ((pair & ~kLowHalf) == 0) pair |= kHighMinusZero;
  return pair;
}

}  // namespace tessera::cuda::device
