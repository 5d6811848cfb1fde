// SPDX-License-Identifier: Apache-2.0
// Brings weights and activations into the layout of the register tile: weights decoded to FP32 and
// transposed once, then read by every activation row. Local to the including file.
#pragma once

#include "cpu/fast/linear_level.h"
#include "cpu/fast/linear_vec.h"

namespace tessera::cpu {
namespace {

inline constexpr int kPanel = 2 * kLanes;  // columns of a panel: two vectors

/// One stage of a square transpose by swapping off-diagonal squares of side kSide.
template <int kSide, bool kLower>
constexpr int swap_source(int lane) {
  if constexpr (kLower) return (lane & kSide) == 0 ? lane + kSide : lane + kLanes;
  return (lane & kSide) == 0 ? lane : lane - kSide + kLanes;
}

template <int kSide, bool kLower>
[[gnu::always_inline]] inline Words swap_half(const Words& upper, const Words& lower) {
#define TESSERA_SOURCE(lane) swap_source<kSide, kLower>(lane)
#if TESSERA_VECTOR_BYTES == 64
  return __builtin_shufflevector(
      upper, lower, TESSERA_SOURCE(0), TESSERA_SOURCE(1), TESSERA_SOURCE(2), TESSERA_SOURCE(3),
      TESSERA_SOURCE(4), TESSERA_SOURCE(5), TESSERA_SOURCE(6), TESSERA_SOURCE(7), TESSERA_SOURCE(8),
      TESSERA_SOURCE(9), TESSERA_SOURCE(10), TESSERA_SOURCE(11), TESSERA_SOURCE(12),
      TESSERA_SOURCE(13), TESSERA_SOURCE(14), TESSERA_SOURCE(15));
#elif TESSERA_VECTOR_BYTES == 32
  return __builtin_shufflevector(upper, lower, TESSERA_SOURCE(0), TESSERA_SOURCE(1),
                                 TESSERA_SOURCE(2), TESSERA_SOURCE(3), TESSERA_SOURCE(4),
                                 TESSERA_SOURCE(5), TESSERA_SOURCE(6), TESSERA_SOURCE(7));
#else
  return __builtin_shufflevector(upper, lower, TESSERA_SOURCE(0), TESSERA_SOURCE(1),
                                 TESSERA_SOURCE(2), TESSERA_SOURCE(3));
#endif
#undef TESSERA_SOURCE
}

template <int kSide>
[[gnu::always_inline]] inline void transpose_stage(Words (&square)[kLanes]) {
  for (int upper = 0; upper < kLanes; ++upper) {
    if ((upper & kSide) != 0) continue;
    const Words a = square[upper], b = square[upper + kSide];
    square[upper] = swap_half<kSide, false>(a, b);
    square[upper + kSide] = swap_half<kSide, true>(a, b);
  }
}

[[gnu::always_inline]] inline void transpose(Words (&square)[kLanes]) {
  if constexpr (kLanes > 8) transpose_stage<8>(square);
  if constexpr (kLanes > 4) transpose_stage<4>(square);
  transpose_stage<2>(square);
  transpose_stage<1>(square);
}

/// One word column of kLanes weight rows to kPerWord rows of the panel.
template <class W, int kIndex = 0>
[[gnu::always_inline]] inline void spread(const Words& words, float scale, float* out, int count) {
  if constexpr (kIndex < W::kPerWord) {
    if (kIndex < count) {
      Vec value = W::template unpack<kIndex>(words);
      if constexpr (W::kScaled) value *= scale;
      store(out + kIndex * kPanel, value);
    }
    spread<W, kIndex + 1>(words, scale, out, count);
  }
}

/// Rows [n, n + rows) of the weight, elements [k, k + depth), to out[depth][kPanel]; missing rows
/// up to kLanes become zeros. depth <= kStep.
template <class W>
[[gnu::always_inline]] inline void pack_square(const WeightView& weight, int n, int rows, int k,
                                               int depth, float* out) {
  constexpr int kStep = kLanes * W::kPerWord;
  Words square[kLanes];
  const unsigned char* from = weight.data + n * weight.row_bytes + int64_t{k} * W::kBytes;
  if (rows == kLanes && depth == kStep) {
    for (int row = 0; row < kLanes; ++row) square[row] = load<Words>(from + row * weight.row_bytes);
  } else {
    for (int row = 0; row < kLanes; ++row) {
      unsigned char raw[kVectorBytes] = {};
      if (row < rows)
        __builtin_memcpy(raw, from + row * weight.row_bytes,
                         static_cast<size_t>(depth * W::kBytes));
      square[row] = load<Words>(raw);
    }
  }
  transpose(square);
  float scale = 1.0F;
  if constexpr (W::kScaled)
    scale = weight.scale[n / kScaleSide * weight.scale_cols + k / kScaleSide] * W::kUnit;
  for (int word = 0; word < kLanes; ++word) {
    const int done = word * W::kPerWord;
    if (done >= depth) break;
    spread<W>(square[word], scale, out + done * kPanel, depth - done);
  }
}

/// Weight rows [n, n + rows) with rows <= kPanel, elements [k, k + depth), to out[depth][kPanel].
template <class W>
void pack_panel(const WeightView& weight, int n, int rows, int k, int depth, float* out) {
  constexpr int kStep = kLanes * W::kPerWord;
  static_assert(kScaleSide % kStep == 0 && kDepthBlock % kStep == 0);
  for (int half = 0; half < 2; ++half) {
    const int left = rows - half * kLanes;
    const int here = left < 0 ? 0 : left < kLanes ? left : kLanes;
    for (int done = 0; done < depth; done += kStep) {
      const int span = depth - done < kStep ? depth - done : kStep;
      float* to = out + done * kPanel + half * kLanes;
      if (here == 0)
        for (int row = 0; row < span; ++row) store(to + row * kPanel, Vec{});
      else
        pack_square<W>(weight, n + half * kLanes, here, k + done, span, to);
    }
  }
}

inline void pack_any(const WeightView& weight, int n, int rows, int k, int depth, float* out) {
  switch (weight.dtype) {
    case DType::kF32: return pack_panel<F32Weight>(weight, n, rows, k, depth, out);
    case DType::kBF16: return pack_panel<Bf16Weight>(weight, n, rows, k, depth, out);
    case DType::kF8E4M3: return pack_panel<F8Weight>(weight, n, rows, k, depth, out);
    default: return;
  }
}

/// `rows` activation rows to out[rows][kDepthBlock]: the fixed distance keeps the tile's addresses
/// in one register, and rows whose stride is a multiple of a page stop evicting each other.
inline void pack_rows(const float* x, int64_t stride, int rows, int depth, float* out) {
  for (int row = 0; row < rows; ++row)
    __builtin_memcpy(out + row * kDepthBlock, x + row * stride,
                     static_cast<size_t>(depth) * sizeof(float));
}

}  // namespace
}  // namespace tessera::cpu
