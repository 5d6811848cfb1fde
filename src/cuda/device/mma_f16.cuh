// SPDX-License-Identifier: Apache-2.0
// Warp-level products of FP16 operands: E4M3 converts to FP16 exactly and in one instruction.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace tessera::cuda::device {

/// Like mma_m16n8k16 (mma.cuh) for FP16 operands: same fragments.
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4],
                                                 const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Two E4M3 (low 16 bits) to two FP16, low half first. Exact; NaN stays NaN.
__device__ __forceinline__ uint32_t f8x2_to_f16x2(uint32_t codes) {
  const __half2_raw pair =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xFFFFU), __NV_E4M3);
  return uint32_t{pair.x} | uint32_t{pair.y} << 16;
}

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ float2 unpack_f16(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

}  // namespace tessera::cuda::device
