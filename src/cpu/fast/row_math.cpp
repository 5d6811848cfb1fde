// SPDX-License-Identifier: Apache-2.0
// The loops of row_math.h, cloned per instruction set by the compiler.
#include "cpu/fast/row_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu/fast/simd.h"
#include "cpu/fast/vector_math.h"

namespace tessera::cpu {
namespace {

constexpr int kCommonTaps = 4;  // the released models' kernel size gets an unrolled loop

/// Places the E4M3 fields in a float whose exponent is 120 too small, then multiplies by 2^120:
/// this also turns subnormal codes into the right normal floats.
[[gnu::always_inline]] inline float widen_f8(uint8_t code) {
  constexpr uint32_t kNanCode = 0x7FU;
  const uint32_t magnitude = code & 0x7FU;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80U) << 24;
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120F;
  const uint32_t bits = magnitude == kNanCode ? 0x7FC00000U : std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>(bits | sign);
}

TESSERA_SIMD_CLONES
void widen_bf16(const uint16_t* __restrict src, float* __restrict dst, int count) {
#pragma omp simd
  for (int at = 0; at < count; ++at) dst[at] = bf16_to_float(src[at]);
}

TESSERA_SIMD_CLONES
void widen_f8_scaled(const uint8_t* __restrict src, float scale, float* __restrict dst, int count) {
#pragma omp simd
  for (int at = 0; at < count; ++at) dst[at] = widen_f8(src[at]) * scale;
}

TESSERA_SIMD_CLONES
void narrow_bf16(const float* __restrict src, uint16_t* __restrict dst, int count) {
#pragma omp simd
  for (int at = 0; at < count; ++at) dst[at] = float_to_bf16(src[at]);
}

template <bool kSilu>
[[gnu::always_inline]] inline void gated_norm(const float* __restrict x, float factor,
                                              const float* __restrict weight,
                                              const float* __restrict gate, float* __restrict y,
                                              int count) {
#pragma omp simd
  for (int at = 0; at < count; ++at) {
    const float act = kSilu ? vector_silu(gate[at]) : vector_sigmoid(gate[at]);
    y[at] = x[at] * factor * weight[at] * act;
  }
}

template <bool kAdd>
[[gnu::always_inline]] inline void conv_silu(const float* const* rows,
                                             const float* __restrict weight, int taps,
                                             float* __restrict y, int count) {
  if (taps == kCommonTaps) {
    const float* __restrict oldest = rows[0];
    const float* __restrict older = rows[1];
    const float* __restrict previous = rows[2];
    const float* __restrict current = rows[3];
#pragma omp simd
    for (int at = 0; at < count; ++at) {
      const float* tap = weight + static_cast<ptrdiff_t>(at) * kCommonTaps;
      const float sum =
          oldest[at] * tap[0] + older[at] * tap[1] + previous[at] * tap[2] + current[at] * tap[3];
      y[at] = (kAdd ? y[at] : 0.0F) + vector_silu(sum);
    }
    return;
  }
  for (int at = 0; at < count; ++at) {
    float sum = 0;
    for (int tap = 0; tap < taps; ++tap)
      sum += rows[tap][at] * weight[static_cast<ptrdiff_t>(at) * taps + tap];
    y[at] = (kAdd ? y[at] : 0.0F) + vector_silu(sum);
  }
}

}  // namespace

void widen_row(const void* src, DType dtype, float scale, float* dst, int count) {
  switch (dtype) {
    case DType::kBF16: widen_bf16(static_cast<const uint16_t*>(src), dst, count); break;
    case DType::kF8E4M3:
      widen_f8_scaled(static_cast<const uint8_t*>(src), scale, dst, count);
      break;
    default: std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(float)); break;
  }
}

void narrow_row(const float* src, DType dtype, void* dst, int count) {
  if (dtype == DType::kBF16) {
    narrow_bf16(src, static_cast<uint16_t*>(dst), count);
  } else {
    std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(float));
  }
}

void widen_weight_row(const ops::LinearWeight& weight, int row, float* dst) {
  const auto* src =
      static_cast<const std::byte*>(weight.data) + static_cast<size_t>(row) * weight.row_bytes();
  if (weight.dtype != DType::kF8E4M3) {
    widen_row(src, weight.dtype, 1.0F, dst, weight.in_features);
    return;
  }
  const float* scales =
      weight.scale + static_cast<ptrdiff_t>(row / ops::kScaleBlock) * weight.scale_cols();
  for (int at = 0; at < weight.in_features; at += ops::kScaleBlock) {
    const int count = std::min(ops::kScaleBlock, weight.in_features - at);
    widen_row(src + at, weight.dtype, scales[at / ops::kScaleBlock], dst + at, count);
  }
}

TESSERA_SIMD_CLONES
float sum_squares(const float* __restrict x, int count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int at = 0; at < count; ++at) sum += x[at] * x[at];
  return sum;
}

TESSERA_SIMD_CLONES
float dot(const float* __restrict a, const float* __restrict b, int count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int at = 0; at < count; ++at) sum += a[at] * b[at];
  return sum;
}

TESSERA_SIMD_CLONES
void scale_one_plus(const float* x, const float* __restrict weight, float factor, float* y,
                    int count) {
#pragma omp simd
  for (int at = 0; at < count; ++at) y[at] = x[at] * factor * (1.0F + weight[at]);
}

void rms_one_plus(const float* x, const float* weight, float eps, float* y, int count) {
  const float mean = sum_squares(x, count) / static_cast<float>(count);
  scale_one_plus(x, weight, 1.0F / std::sqrt(mean + eps), y, count);
}

TESSERA_SIMD_CLONES
void scale_row(const float* x, float factor, float* y, int count) {
#pragma omp simd
  for (int at = 0; at < count; ++at) y[at] = x[at] * factor;
}

TESSERA_SIMD_CLONES
void add_scaled(float factor, const float* __restrict x, float* __restrict y, int count) {
#pragma omp simd
  for (int at = 0; at < count; ++at) y[at] += factor * x[at];
}

TESSERA_SIMD_CLONES
void silu_row(const float* x, float factor, float* y, int count) {
#pragma omp simd
  for (int at = 0; at < count; ++at) y[at] = vector_silu(x[at] * factor);
}

TESSERA_SIMD_CLONES
void sigmoid_row(const float* x, float* y, int count) {
#pragma omp simd
  for (int at = 0; at < count; ++at) y[at] = vector_sigmoid(x[at]);
}

TESSERA_SIMD_CLONES
void gated_branch_mean(const float* __restrict gate, const float* __restrict norm, int branches,
                       int hidden, float* __restrict y) {
  const float share = 1.0F / static_cast<float>(branches);
#pragma omp simd
  for (int at = 0; at < hidden; ++at) y[at] = vector_sigmoid(gate[at]) * norm[at];
  for (int branch = 1; branch < branches; ++branch) {
    const float* __restrict branch_gate = gate + static_cast<ptrdiff_t>(branch) * hidden;
    const float* __restrict branch_norm = norm + static_cast<ptrdiff_t>(branch) * hidden;
#pragma omp simd
    for (int at = 0; at < hidden; ++at) y[at] += vector_sigmoid(branch_gate[at]) * branch_norm[at];
  }
#pragma omp simd
  for (int at = 0; at < hidden; ++at) y[at] *= share;
}

TESSERA_SIMD_CLONES
void gated_norm_row(const float* x, float factor, const float* weight, const float* gate, bool silu,
                    float* y, int count) {
  if (silu) {
    gated_norm<true>(x, factor, weight, gate, y, count);
  } else {
    gated_norm<false>(x, factor, weight, gate, y, count);
  }
}

TESSERA_SIMD_CLONES
void gate_row(const float* __restrict x, float factor, const float* __restrict gate,
              float* __restrict y, int count) {
#pragma omp simd
  for (int at = 0; at < count; ++at) y[at] = x[at] * factor * vector_sigmoid(gate[at]);
}

TESSERA_SIMD_CLONES
void rotate_row(const float* __restrict cosine, const float* __restrict sine, int half,
                float* __restrict x) {
  float* __restrict high_half = x + half;
#pragma omp simd
  for (int pair = 0; pair < half; ++pair) {
    const float low = x[pair];
    const float high = high_half[pair];
    x[pair] = low * cosine[pair] - high * sine[pair];
    high_half[pair] = high * cosine[pair] + low * sine[pair];
  }
}

TESSERA_SIMD_CLONES
void conv_silu_row(const float* const* rows, const float* weight, int taps, float* y, int count) {
  conv_silu<false>(rows, weight, taps, y, count);
}

TESSERA_SIMD_CLONES
void add_conv_silu_row(const float* const* rows, const float* weight, int taps, float* y,
                       int count) {
  conv_silu<true>(rows, weight, taps, y, count);
}

}  // namespace tessera::cpu
