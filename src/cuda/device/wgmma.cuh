// SPDX-License-Identifier: Apache-2.0
// Warpgroup tensor core products (sm_90a): 128 threads multiply tiles that lie in shared memory.
// Used by all four warps of a group together.
#pragma once

#include <cstdint>

#include "cuda/device/mma.cuh"

namespace tessera::cuda::device {

inline constexpr int kWarpgroup = 128;
/// A row of an operand tile in shared memory: 64 BF16 of K, one 128-byte swizzle span.
inline constexpr int kSwizzleBytes = 128;
/// Rows after which the swizzle pattern repeats; tiles start at multiples of this many rows.
inline constexpr int kSwizzleRows = 8;

/// Where 16-byte piece `piece` (0..7) of row `row` of such a tile lies, in bytes: the pattern that
/// wgmma and tensor copies call the 128-byte swizzle.
__device__ __forceinline__ int swizzled_offset(int row, int piece) {
  return row * kSwizzleBytes + ((piece ^ (row % kSwizzleRows)) << 4);
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Describes a tile [rows][64] BF16, K contiguous, 128-byte swizzle, base aligned to 1024 bytes.
/// K advances by adding kDescriptorK16 per k16 step.
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile) {
  constexpr uint64_t kStride = kSwizzleRows * kSwizzleBytes >> 4;  // from 8 rows to the next 8
  constexpr uint64_t kSwizzle128 = 1;
  constexpr uint64_t kAddressMask = 0x3FFFF;
  return (shared_address(tile) & kAddressMask) >> 4 | uint64_t{1} << 16 | kStride << 32 |
         kSwizzle128 << 62;
}
inline constexpr uint64_t kDescriptorK16 = 32 >> 4;

/// Registers and shared memory written so far may be read by products issued after this.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most kPending committed groups are still under way.
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving accumulators across the asynchronous products.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&values)[kCount]) {
#pragma unroll
  for (int index = 0; index < kCount; ++index) asm volatile("" : "+f"(values[index])::"memory");
}

/// Registers per thread of the calling warpgroup from here on; all warpgroups together must stay
/// within what the launch got.
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#define TESSERA_OUT8(d, at)                                                        \
  "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3]), "+f"(d[at + 4]), \
      "+f"(d[at + 5]), "+f"(d[at + 6]), "+f"(d[at + 7])
#define TESSERA_OUT32(d, at) \
  TESSERA_OUT8(d, at), TESSERA_OUT8(d, at + 8), TESSERA_OUT8(d, at + 16), TESSERA_OUT8(d, at + 24)
#define TESSERA_NAMES_0_31                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19," \
  " %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TESSERA_NAMES_32_47 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TESSERA_NAMES_48_63 \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TESSERA_NAMES_64_79 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TESSERA_NAMES_80_95 \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
// After the accumulators: a, b, that d is added to, signs, and that neither operand is transposed.
#define TESSERA_WGMMA(shape, names, a, b)                                             \
  "{\n.reg .pred keep;\nsetp.eq.b32 keep, 0, 0;\nwgmma.mma_async.sync.aligned." shape \
  ".f32.bf16.bf16 {" names "}, " a ", " b ", keep, 1, 1, 0, 0;\n}"

/// d[64 x kColumns] += a[64 x 16] b[kColumns x 16]^T, BF16 in, FP32 accumulate. Lane l of warp w
/// holds, with g = l / 4, t = l % 4: d[4c + 0, 1]: row 16w + g, columns 8c + 2t, 8c + 2t + 1; d[4c
/// + 2, 3]: row 16w + g + 8.
template <int kColumns>
__device__ __forceinline__ void multiply_tiles(float (&d)[kColumns / 2], uint64_t a, uint64_t b) {
  static_assert(
      kColumns == 64 || kColumns == 96 || kColumns == 128 || kColumns == 160 || kColumns == 192,
      "add the register list of this width");
  if constexpr (kColumns == 64) {
    asm volatile(TESSERA_WGMMA("m64n64k16", TESSERA_NAMES_0_31, "%32", "%33")
                 : TESSERA_OUT32(d, 0)
                 : "l"(a), "l"(b));
  } else if constexpr (kColumns == 96) {
    asm volatile(TESSERA_WGMMA("m64n96k16", TESSERA_NAMES_0_31 TESSERA_NAMES_32_47, "%48", "%49")
                 : TESSERA_OUT32(d, 0), TESSERA_OUT8(d, 32), TESSERA_OUT8(d, 40)
                 : "l"(a), "l"(b));
  } else if constexpr (kColumns == 128) {
    asm volatile(
        TESSERA_WGMMA("m64n128k16", TESSERA_NAMES_0_31 TESSERA_NAMES_32_47 TESSERA_NAMES_48_63,
                      "%64", "%65")
        : TESSERA_OUT32(d, 0), TESSERA_OUT32(d, 32)
        : "l"(a), "l"(b));
  } else if constexpr (kColumns == 160) {
    asm volatile(TESSERA_WGMMA(
                     "m64n160k16",
                     TESSERA_NAMES_0_31 TESSERA_NAMES_32_47 TESSERA_NAMES_48_63 TESSERA_NAMES_64_79,
                     "%80", "%81")
                 : TESSERA_OUT32(d, 0), TESSERA_OUT32(d, 32), TESSERA_OUT8(d, 64),
                   TESSERA_OUT8(d, 72)
                 : "l"(a), "l"(b));
  } else {
    asm volatile(TESSERA_WGMMA("m64n192k16",
                               TESSERA_NAMES_0_31 TESSERA_NAMES_32_47 TESSERA_NAMES_48_63
                                   TESSERA_NAMES_64_79 TESSERA_NAMES_80_95,
                               "%96", "%97")
                 : TESSERA_OUT32(d, 0), TESSERA_OUT32(d, 32), TESSERA_OUT32(d, 64)
                 : "l"(a), "l"(b));
  }
}

#undef TESSERA_OUT8
#undef TESSERA_OUT32
#undef TESSERA_NAMES_0_31
#undef TESSERA_NAMES_32_47
#undef TESSERA_NAMES_48_63
#undef TESSERA_NAMES_64_79
#undef TESSERA_NAMES_80_95
#undef TESSERA_WGMMA

#endif

}  // namespace tessera::cuda::device
