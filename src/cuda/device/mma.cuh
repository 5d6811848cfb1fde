// SPDX-License-Identifier: Apache-2.0
// Warp-level tensor core products (sm_80 and up) and the loads that feed them.
#pragma once

#include <cstdint>

namespace tessera::cuda::device {

/// d[16x8] += a[16x16] b[16x8], BF16 in, FP32 accumulate. Lane l holds, with g = l / 4, t = l % 4:
/// a: rows g, g+8; columns 2t, 2t+1 and 2t+8, 2t+9, as {a[g][2t..], a[g+8][2t..], a[g][2t+8..],
/// a[g+8][2t+8..]}; b: rows 2t, 2t+1 and 2t+8, 2t+9 of column g; d: rows g and g+8, columns 2t,
/// 2t+1.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/// The reverse of load_matrix_x4_transposed: the element that a lane holds of row g, column c of
/// matrix m goes to element g of the row of 8 whose address lane 8m + c gives.
__device__ __forceinline__ void store_matrix_x4_transposed(void* row, const uint32_t (&in)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(row)),
               "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3])
               : "memory");
}
#endif

}  // namespace tessera::cuda::device
