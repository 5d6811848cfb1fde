// SPDX-License-Identifier: Apache-2.0
// Vectors of the width this file is compiled for, and the exact decoding of stored weights.
// Everything is local to the including file: see linear_level.h.
#pragma once

#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define TESSERA_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define TESSERA_VECTOR_BYTES 32
#else
#define TESSERA_VECTOR_BYTES 16
#endif

namespace tessera::cpu {
namespace {

inline constexpr int kVectorBytes = TESSERA_VECTOR_BYTES;
inline constexpr int kLanes = kVectorBytes / 4;

using Vec = float __attribute__((vector_size(kVectorBytes)));
using Words = uint32_t __attribute__((vector_size(kVectorBytes)));
using Ints = int32_t __attribute__((vector_size(kVectorBytes)));
using Halves = uint16_t __attribute__((vector_size(kVectorBytes / 2)));
using Shorts = int16_t __attribute__((vector_size(kVectorBytes / 2)));
using Bytes = int8_t __attribute__((vector_size(kVectorBytes / 4)));

template <class T>
[[gnu::always_inline]] inline T load(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
[[gnu::always_inline]] inline void store(void* to, const T& value) {
  __builtin_memcpy(to, &value, sizeof(T));
}

template <class To, class From>
[[gnu::always_inline]] inline To same_bits(const From& from) {
  return __builtin_bit_cast(To, from);
}

// Widening by instruction: left to itself, GCC 12 does it in halves and joins them.
[[gnu::always_inline]] inline Words widen(const Halves& values) {
#if defined(__AVX512F__)
  return same_bits<Words>(_mm512_maskz_cvtepu16_epi32(0xFFFF, same_bits<__m256i>(values)));
#elif defined(__AVX2__)
  return same_bits<Words>(_mm256_cvtepu16_epi32(same_bits<__m128i>(values)));
#else
  return __builtin_convertvector(values, Words);
#endif
}

/// Sign-extends.
[[gnu::always_inline]] inline Halves widen(const Bytes& values) {
#if defined(__AVX512F__)
  return same_bits<Halves>(_mm256_cvtepi8_epi16(same_bits<__m128i>(values)));
#elif defined(__AVX2__)
  return same_bits<Halves>(_mm_cvtepi8_epi16(_mm_cvtsi64_si128(same_bits<int64_t>(values))));
#else
  return same_bits<Halves>(__builtin_convertvector(values, Shorts));
#endif
}

[[gnu::always_inline]] inline Vec half_to_float(const Halves& half) {
#if defined(__AVX512F__)
  // All lanes; the plain form reads an undefined register, which GCC 12 warns about.
  return _mm512_maskz_cvtph_ps(0xFFFF, same_bits<__m256i>(half));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(same_bits<__m128i>(half));
#else
  // Without a conversion instruction: place the bits, then multiply the wrong bias away.
  constexpr uint32_t kMagnitude = 0x0FFFE000U, kSign = 0x80000000U, kNanBits = 0x0F800000U;
  const Words wide = widen(half);
  const Words bits = (wide << 13 & kMagnitude) | (wide << 16 & kSign);
  const Words is_nan = same_bits<Words>((bits & kNanBits) == kNanBits);
  return same_bits<Vec>(same_bits<Words>(same_bits<Vec>(bits) * 0x1p112F) | is_nan);
#endif
}

/// x - 0 keeps every value, -0 included.
[[gnu::always_inline]] inline Vec broadcast(float value) { return value - Vec{}; }

/// Sum of the lanes, halves first: the order is part of the decode path's promise.
[[gnu::always_inline]] inline float sum_lanes(const Vec& value) {
  using Quad = float __attribute__((vector_size(16)));
#if TESSERA_VECTOR_BYTES == 64
  using Octet = float __attribute__((vector_size(32)));
  const Octet low = __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7);
  const Octet high = __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
  const Octet octet = low + high;
#else
  const auto octet = value;
#endif
#if TESSERA_VECTOR_BYTES >= 32
  const Quad quad = __builtin_shufflevector(octet, octet, 0, 1, 2, 3) +
                    __builtin_shufflevector(octet, octet, 4, 5, 6, 7);
#else
  const Quad quad = octet;
#endif
  return (quad[0] + quad[2]) + (quad[1] + quad[3]);
}

/// The stored types. kPerWord values share a 32-bit word, the first one in the low bits.
struct F32Weight {
  static constexpr int kBytes = 4;
  static constexpr int kPerWord = 1;
  static constexpr bool kScaled = false;
  [[gnu::always_inline]] static Vec decode(const unsigned char* from) { return load<Vec>(from); }
  template <int kIndex>
  [[gnu::always_inline]] static Vec unpack(const Words& words) {
    return same_bits<Vec>(words);
  }
};

struct Bf16Weight {
  static constexpr int kBytes = 2;
  static constexpr int kPerWord = 2;
  static constexpr bool kScaled = false;
  [[gnu::always_inline]] static Vec decode(const unsigned char* from) {
    const Words bits = widen(load<Halves>(from)) << 16;
    return same_bits<Vec>(bits);
  }
  template <int kIndex>
  [[gnu::always_inline]] static Vec unpack(const Words& words) {
    const Words bits = kIndex == 0 ? words << 16 : words & 0xFFFF0000U;
    return same_bits<Vec>(bits);
  }
};

/// E4M3 through FP16, which has one exponent bit more: sign extension puts copies of the sign above
/// the code, one shift places it and the mask keeps one. The exponent bias is off by 8, so values
/// are short by kUnit. A float built the same way would be subnormal for small codes, and x86
/// multiplies those several times slower.
struct F8Weight {
  static constexpr int kBytes = 1;
  static constexpr int kPerWord = 4;
  static constexpr bool kScaled = true;
  static constexpr float kUnit = 256.0F;
  static constexpr uint16_t kMask = 0xBF80;
  static constexpr uint16_t kNan = 0x3F80;

  [[gnu::always_inline]] static Halves place(const Bytes& codes) {
    return widen(codes) << 7 & kMask;
  }
  [[gnu::always_inline]] static Vec decode(const unsigned char* from) {
    return half_to_float(place(load<Bytes>(from)));
  }
  /// NaN codes stay NaN here; the dot kernel looks for them once per row instead.
  template <int kIndex>
  [[gnu::always_inline]] static Vec unpack(const Words& words) {
    const Halves half = place(__builtin_convertvector(words >> (8 * kIndex), Bytes));
    constexpr uint16_t kHalfNan = 0x7FFF;
    const Halves is_nan = same_bits<Halves>((half & kNan) == kNan);
    return half_to_float(half | (is_nan & kHalfNan));
  }
};

}  // namespace
}  // namespace tessera::cpu
