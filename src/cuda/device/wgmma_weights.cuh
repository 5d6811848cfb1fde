// SPDX-License-Identifier: Apache-2.0
// Warpgroup products of weights in registers with values whose columns are contiguous in shared
// memory (sm_90a): the second product of attention.
#pragma once

#include "cuda/device/wgmma.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Describes a tile [K rows][columns] BF16 as slabs of 64 columns: slab s, rows of 128 bytes with
/// the 128-byte swizzle, starts `slab_bytes` after slab s - 1. Base aligned to 1024 bytes; 16 rows
/// further: add kDescriptorRows16.
__device__ __forceinline__ uint64_t columns_descriptor(const void* tile, uint32_t slab_bytes) {
  constexpr uint64_t kStride = kSwizzleRows * kSwizzleBytes >> 4;  // from 8 rows to the next 8
  constexpr uint64_t kSwizzle128 = 1;
  constexpr uint64_t kAddressMask = 0x3FFFF;
  return (shared_address(tile) & kAddressMask) >> 4 | uint64_t{slab_bytes >> 4} << 16 |
         kStride << 32 | kSwizzle128 << 62;
}
inline constexpr uint64_t kDescriptorRows16 = 16 * kSwizzleBytes >> 4;

#define TESSERA_OUT8(d, at)                                                        \
  "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3]), "+f"(d[at + 4]), \
      "+f"(d[at + 5]), "+f"(d[at + 6]), "+f"(d[at + 7])
#define TESSERA_OUT32(d, at) \
  TESSERA_OUT8(d, at), TESSERA_OUT8(d, at + 8), TESSERA_OUT8(d, at + 16), TESSERA_OUT8(d, at + 24)

/// d[64 x 256] += a[64 x 16] b[16 x 256], BF16 in, FP32 accumulate. d as multiply_tiles has it;
/// warp w holds rows 16w .. 16w + 15 of a like the a of mma_m16n8k16. `a` must stay untouched until
/// wait_products.
__device__ __forceinline__ void multiply_weights(float (&d)[128], const uint32_t (&a)[4],
                                                 uint64_t b) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.eq.b32 keep, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
      "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
      "%125, %126, %127}, {%128, %129, %130, %131}, %132, keep, 1, 1, 1;\n}"
      : TESSERA_OUT32(d, 0), TESSERA_OUT32(d, 32), TESSERA_OUT32(d, 64), TESSERA_OUT32(d, 96)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef TESSERA_OUT8
#undef TESSERA_OUT32

#endif

}  // namespace tessera::cuda::device
