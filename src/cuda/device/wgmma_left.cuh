// SPDX-License-Identifier: Apache-2.0
// Warpgroup products whose left operand is in registers (sm_90a): what a product leaves in its
// accumulators is, packed, the left operand of the next one, so that chains need no shared memory.
#pragma once

#include "cuda/device/wgmma.cuh"
#include "cuda/device/wgmma_weights.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// For left operands what pin_registers is for accumulators: before begin_products and behind the
/// wait, or the compiler packs them too late, reuses them too early and lets every product wait.
template <int kSteps>
__device__ __forceinline__ void pin_operands(uint32_t (&operands)[kSteps][4]) {
#pragma unroll
  for (auto& step : operands)
    asm volatile("" : "+r"(step[0]), "+r"(step[1]), "+r"(step[2]), "+r"(step[3])::"memory");
}

#define TESSERA_OUT8(d, at)                                                        \
  "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3]), "+f"(d[at + 4]), \
      "+f"(d[at + 5]), "+f"(d[at + 6]), "+f"(d[at + 7])
#define TESSERA_OUT32(d, at) \
  TESSERA_OUT8(d, at), TESSERA_OUT8(d, at + 8), TESSERA_OUT8(d, at + 16), TESSERA_OUT8(d, at + 24)
#define TESSERA_NAMES_0_31                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19," \
  " %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TESSERA_NAMES_32_63                                                                     \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49," \
  " %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/// d[64 x 64] += a[64 x 16] b[64 x 16]^T, BF16 in, FP32 accumulate; b: tile_descriptor. d as
/// multiply_tiles has it; warp w holds rows 16w .. 16w + 15 of a like the a of mma_m16n8k16. `a`
/// must stay untouched until wait_products.
__device__ __forceinline__ void multiply_left(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.eq.b32 keep, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TESSERA_NAMES_0_31
      "}, {%32, %33, %34, %35}, %36, keep, 1, 1, 0;\n}"
      : TESSERA_OUT32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/// d[64 x 128] += a[64 x 16] b[16 x 128]; b: columns_descriptor. Else like multiply_left.
__device__ __forceinline__ void multiply_left_columns(float (&d)[64], const uint32_t (&a)[4],
                                                      uint64_t b) {
  asm volatile(
      "{\n.reg .pred keep;\nsetp.eq.b32 keep, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" TESSERA_NAMES_0_31 TESSERA_NAMES_32_63 "}, {%64, %65, %66, %67}, %68, keep, 1, 1, 1;\n}"
      : TESSERA_OUT32(d, 0), TESSERA_OUT32(d, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef TESSERA_OUT8
#undef TESSERA_OUT32
#undef TESSERA_NAMES_0_31
#undef TESSERA_NAMES_32_63

#endif

}  // namespace tessera::cuda::device
