// SPDX-License-Identifier: Apache-2.0
// E4M3 by table for processors that look up 64 bytes at once (AVX-512 VBMI): every code is exact in
// BF16, so one table holds the high bytes and one the low bytes. Local to the including file.
#pragma once

#include "core/dtype.h"
#include "cpu/fast/linear_vec.h"

#if defined(__AVX512VBMI__)

namespace tessera::cpu {
namespace {

inline constexpr int kCodes = 64;  // decoded at a time: a cache line

struct alignas(64) F8Tables {
  uint8_t high[2 * kCodes] = {};
  uint8_t low[2 * kCodes] = {};
  uint8_t order[kCodes] = {};
};

/// Magnitudes in the unit of F8Weight, NaN as NaN; and the order of codes from which two byte
/// interleaves, which work within 16 bytes, produce vectors of 16 consecutive codes.
constexpr F8Tables make_f8_tables() {
  constexpr int kBlock = 16, kPart = kBlock / 2, kRun = 4;
  F8Tables tables;
  for (int code = 0; code < 2 * kCodes; ++code) {
    const float value = f8e4m3_to_float(static_cast<uint8_t>(code));
    const bool nan = value != value;  // stays out of constant arithmetic, which clang refuses
    const float stored = nan ? value : value / F8Weight::kUnit;
    const uint32_t bits = __builtin_bit_cast(uint32_t, stored);
    tables.high[code] = static_cast<uint8_t>(bits >> 24);
    tables.low[code] = static_cast<uint8_t>(bits >> 16);
  }
  for (int place = 0; place < kCodes; ++place) {
    const int block = place / kBlock, part = place % kBlock / kPart, within = place % kPart;
    const int vector = 2 * part + within % 2;
    tables.order[place] = static_cast<uint8_t>(vector * kBlock + block * kRun + within / 2);
  }
  return tables;
}

inline constexpr F8Tables kF8Tables = make_f8_tables();

/// 64 codes to four vectors, in order.
[[gnu::always_inline]] inline void look_up_f8(const unsigned char* from, Vec (&out)[4]) {
  constexpr uint32_t kSigns = 0x80808080U, kUpper = 0xFFFF0000U;
  constexpr int kFirstOrBoth = 0xF8;  // a | (b & c)
  const auto table = [](const uint8_t* bytes) { return load<__m512i>(bytes); };
  const __m512i codes =
      _mm512_maskz_permutexvar_epi8(~uint64_t{0}, table(kF8Tables.order), load<__m512i>(from));
  const __m512i high = _mm512_ternarylogic_epi32(
      _mm512_permutex2var_epi8(table(kF8Tables.high), codes, table(kF8Tables.high + kCodes)), codes,
      _mm512_set1_epi32(static_cast<int>(kSigns)), kFirstOrBoth);
  const __m512i low =
      _mm512_permutex2var_epi8(table(kF8Tables.low), codes, table(kF8Tables.low + kCodes));
  const Words first = same_bits<Words>(_mm512_unpacklo_epi8(low, high));
  const Words second = same_bits<Words>(_mm512_unpackhi_epi8(low, high));
  out[0] = same_bits<Vec>(first << 16);
  out[1] = same_bits<Vec>(first & kUpper);
  out[2] = same_bits<Vec>(second << 16);
  out[3] = same_bits<Vec>(second & kUpper);
}

}  // namespace
}  // namespace tessera::cpu

#endif
