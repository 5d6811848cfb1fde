// SPDX-License-Identifier: Apache-2.0
// Arithmetic that stays where it is written: the compiler likes to put independent work behind a
// chain of exchanges, whose latency then is idle, and what depends on a load in front of other
// work.
#pragma once

namespace tessera::cuda::device {

/// value *= factor, rounded to nearest like __fmul_rn.
__device__ __forceinline__ void multiply_here(float& value, float factor) {
  asm volatile("mul.rn.f32 %0, %0, %1;" : "+f"(value) : "f"(factor));
}

/// The same value, from here on: what follows from it is not computed earlier, where a load that
/// is under way would have to be waited for.
__device__ __forceinline__ int known_here(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace tessera::cuda::device
