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

/// The same for operands that the products read.
template <int kCount>
__device__ __forceinline__ void pin_registers(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int index = 0; index < kCount; ++index) asm volatile("" : "+r"(values[index])::"memory");
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

// Accumulators in groups of eight, as operands and as their names.
#define TESSERA_OUT8(at)                                                           \
  "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3]), "+f"(d[at + 4]), \
      "+f"(d[at + 5]), "+f"(d[at + 6]), "+f"(d[at + 7])
#define TESSERA_OUT32 TESSERA_OUT8(0), TESSERA_OUT8(8), TESSERA_OUT8(16), TESSERA_OUT8(24)
#define TESSERA_OUT40 TESSERA_OUT32, TESSERA_OUT8(32)
#define TESSERA_OUT48 TESSERA_OUT40, TESSERA_OUT8(40)
#define TESSERA_OUT56 TESSERA_OUT48, TESSERA_OUT8(48)
#define TESSERA_OUT64 TESSERA_OUT56, TESSERA_OUT8(56)
#define TESSERA_OUT72 TESSERA_OUT64, TESSERA_OUT8(64)
#define TESSERA_OUT80 TESSERA_OUT72, TESSERA_OUT8(72)
#define TESSERA_OUT88 TESSERA_OUT80, TESSERA_OUT8(80)
#define TESSERA_OUT96 TESSERA_OUT88, TESSERA_OUT8(88)
#define TESSERA_NAMES32                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19," \
  " %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TESSERA_NAMES40 TESSERA_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TESSERA_NAMES48 TESSERA_NAMES40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TESSERA_NAMES56 TESSERA_NAMES48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TESSERA_NAMES64 TESSERA_NAMES56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TESSERA_NAMES72 TESSERA_NAMES64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TESSERA_NAMES80 TESSERA_NAMES72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TESSERA_NAMES88 TESSERA_NAMES80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TESSERA_NAMES96 TESSERA_NAMES88 ", %88, %89, %90, %91, %92, %93, %94, %95"
// After the accumulators: a, b, that d is added to, signs, and that neither operand is transposed.
#define TESSERA_WGMMA(columns, names, a, b, layout)                                          \
  "{\n.reg .pred keep;\nsetp.eq.b32 keep, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #columns \
  "k16.f32.bf16.bf16 {" names "}, " a ", " b ", keep, 1, 1, " layout ";\n}"
#define TESSERA_TILES(columns, count, a, b)                                         \
  if constexpr (kColumns == columns)                                                \
  asm volatile(TESSERA_WGMMA(columns, TESSERA_NAMES##count, "%" #a, "%" #b, "0, 0") \
               : TESSERA_OUT##count                                                 \
               : "l"(a_tile), "l"(b_tile))
#define TESSERA_HELD(columns, count, a0, a1, a2, a3, b)                               \
  if constexpr (kColumns == columns)                                                  \
  asm volatile(TESSERA_WGMMA(columns, TESSERA_NAMES##count,                           \
                             "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}", "%" #b, "0") \
               : TESSERA_OUT##count                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_tile))

/// Widths that multiply_tiles takes.
constexpr bool is_tile_width(int columns) {
  return columns % 16 == 0 && columns >= 64 && columns <= 192;
}

/// d[64 x kColumns] += a[64 x 16] b[kColumns x 16]^T, BF16 in, FP32 accumulate. Lane l of warp w
/// holds, with g = l / 4, t = l % 4: d[4c + 0, 1]: row 16w + g, columns 8c + 2t, 8c + 2t + 1; d[4c
/// + 2, 3]: row 16w + g + 8.
template <int kColumns>
__device__ __forceinline__ void multiply_tiles(float (&d)[kColumns / 2], uint64_t a_tile,
                                               uint64_t b_tile) {
  static_assert(is_tile_width(kColumns), "add the register list of this width");
  TESSERA_TILES(64, 32, 32, 33);
  TESSERA_TILES(80, 40, 40, 41);
  TESSERA_TILES(96, 48, 48, 49);
  TESSERA_TILES(112, 56, 56, 57);
  TESSERA_TILES(128, 64, 64, 65);
  TESSERA_TILES(144, 72, 72, 73);
  TESSERA_TILES(160, 80, 80, 81);
  TESSERA_TILES(176, 88, 88, 89);
  TESSERA_TILES(192, 96, 96, 97);
}

/// The same with a in registers: warp w holds its rows 16w .. 16w + 15 like the a of mma_m16n8k16.
/// `a` must stay untouched until wait_products.
template <int kColumns>
__device__ __forceinline__ void multiply_tiles(float (&d)[kColumns / 2], const uint32_t (&a)[4],
                                               uint64_t b_tile) {
  static_assert(is_tile_width(kColumns), "add the register list of this width");
  TESSERA_HELD(64, 32, 32, 33, 34, 35, 36);
  TESSERA_HELD(80, 40, 40, 41, 42, 43, 44);
  TESSERA_HELD(96, 48, 48, 49, 50, 51, 52);
  TESSERA_HELD(112, 56, 56, 57, 58, 59, 60);
  TESSERA_HELD(128, 64, 64, 65, 66, 67, 68);
  TESSERA_HELD(144, 72, 72, 73, 74, 75, 76);
  TESSERA_HELD(160, 80, 80, 81, 82, 83, 84);
  TESSERA_HELD(176, 88, 88, 89, 90, 91, 92);
  TESSERA_HELD(192, 96, 96, 97, 98, 99, 100);
}

#undef TESSERA_OUT8
#undef TESSERA_OUT32
#undef TESSERA_OUT40
#undef TESSERA_OUT48
#undef TESSERA_OUT56
#undef TESSERA_OUT64
#undef TESSERA_OUT72
#undef TESSERA_OUT80
#undef TESSERA_OUT88
#undef TESSERA_OUT96
#undef TESSERA_NAMES32
#undef TESSERA_NAMES40
#undef TESSERA_NAMES48
#undef TESSERA_NAMES56
#undef TESSERA_NAMES64
#undef TESSERA_NAMES72
#undef TESSERA_NAMES80
#undef TESSERA_NAMES88
#undef TESSERA_NAMES96
#undef TESSERA_WGMMA
#undef TESSERA_TILES
#undef TESSERA_HELD

#endif

}  // namespace tessera::cuda::device
