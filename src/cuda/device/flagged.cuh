// SPDX-License-Identifier: Apache-2.0
// Values in device memory that carry the number of the round that wrote them: a reader in another
// block sees value and number together and needs no barrier or fence.
#pragma once

#include <cstdint>

namespace tessera::cuda::device {

struct Flagged {
  float value;
  uint32_t round;
};

__device__ __forceinline__ void store_flagged(uint64_t* place, const Flagged& data) {
  const uint64_t word = uint64_t{data.round} << 32 | __float_as_uint(data.value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(place), "l"(word) : "memory");
}
__device__ __forceinline__ Flagged load_flagged(const uint64_t* place) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
  return {__uint_as_float(static_cast<uint32_t>(word)), static_cast<uint32_t>(word >> 32)};
}

}  // namespace tessera::cuda::device
