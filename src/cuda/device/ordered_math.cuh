// SPDX-License-Identifier: Apache-2.0
// Arithmetic that stays where it is written, between the shuffles before and behind it: the
// compiler likes to put independent work behind a chain of exchanges, whose latency then is idle.
#pragma once

namespace tessera::cuda::device {

/// value *= factor, rounded to nearest like __fmul_rn.
__device__ __forceinline__ void multiply_here(float& value, float factor) {
  asm volatile("mul.rn.f32 %0, %0, %1;" : "+f"(value) : "f"(factor));
}

}  // namespace tessera::cuda::device
