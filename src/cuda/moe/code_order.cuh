// SPDX-License-Identifier: Apache-2.0
// E4M3 codes as BF16 operands of tensor core products. A word of four codes widens most cheaply
// into its even and its odd ones; products get both as neighbours in K when the activations lie in
// the same order: of every 16 columns first the even ones, then the odd ones.
#pragma once

#include "cuda/device/bf16.cuh"

namespace tessera::cuda::device {

/// The even codes of a word, then its odd ones, as pairs of BF16. Exact: sign and magnitude move to
/// the places where BF16 has them, which divides every number, subnormal ones too, by 2^120. The
/// conversion instructions are five times as slow. A NaN code, which the weight report would show,
/// counts as 480.
__device__ __forceinline__ uint2 widen_codes(uint32_t codes) {
  constexpr uint32_t kSigns = 0x80008000U, kMagnitudes = 0x07F007F0U;
  constexpr uint32_t kTwoTo120 = 0x7B807B80U;  // both halves
  const auto scaled = [](uint32_t bits) {
    const uint32_t factor = kTwoTo120;
    const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits),
                                           *reinterpret_cast<const __nv_bfloat162*>(&factor));
    return *reinterpret_cast<const uint32_t*>(&product);
  };
  return {scaled((codes << 8 & kSigns) | (codes << 4 & kMagnitudes)),
          scaled((codes & kSigns) | (codes >> 4 & kMagnitudes))};
}

/// 16 neighbouring BF16 values: the even ones to `first`, the odd ones to `second`.
__device__ __forceinline__ void split_evens(uint4& first, uint4& second) {
  constexpr uint32_t kLowHalves = 0x5410, kHighHalves = 0x7632;
  const uint4 a = first, b = second;
  first = {__byte_perm(a.x, a.y, kLowHalves), __byte_perm(a.z, a.w, kLowHalves),
           __byte_perm(b.x, b.y, kLowHalves), __byte_perm(b.z, b.w, kLowHalves)};
  second = {__byte_perm(a.x, a.y, kHighHalves), __byte_perm(a.z, a.w, kHighHalves),
            __byte_perm(b.x, b.y, kHighHalves), __byte_perm(b.z, b.w, kHighHalves)};
}

}  // namespace tessera::cuda::device
