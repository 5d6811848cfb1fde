// SPDX-License-Identifier: Apache-2.0
// Decode kernel: several weight rows against several activation rows, one vector sum per pair.
// Local to the including file: see linear_level.h.
#pragma once

#include "cpu/fast/linear_f8_lookup.h"
#include "cpu/fast/linear_level.h"
#include "cpu/fast/linear_vec.h"

namespace tessera::cpu {
namespace {

inline constexpr int kDotBlock = 4;    // weight rows read side by side, each from its own stream
inline constexpr int kMaxDotRows = 4;  // activation rows that share one pass over the weights
inline constexpr int kLineBytes = 64;  // of a cache line
inline constexpr int kPrefetchBytes = 4096;
inline constexpr int kPrefetchLevel = 2;  // into the second-level cache

/// Weight rows of a tile: sums (twice with scales), activations and a weight fit the registers.
template <class W, int kR>
constexpr int tile_weights() {
  constexpr int kSums = W::kScaled ? 2 * kR : kR;
  constexpr int kRegisters = kVectorBytes == 64 ? 32 : 8;  // spent on sums
  return kSums * kDotBlock <= kRegisters ? kDotBlock : kDotBlock / 2;
}

template <int kN, int kR>
struct DotInput {
  const unsigned char* weight[kN];
  const float* x[kR];
};

template <int kN, int kR>
struct DotSums {
  Vec at[kN][kR] = {};
};

template <class W, int kN, int kR>
[[gnu::always_inline]] inline void dot_step(const DotInput<kN, kR>& input, int k,
                                            DotSums<kN, kR>& sums) {
  Vec x[kR];
  for (int r = 0; r < kR; ++r) x[r] = load<Vec>(input.x[r] + k);
  for (int n = 0; n < kN; ++n) {
    const Vec w = W::decode(input.weight[n] + int64_t{k} * W::kBytes);
    for (int r = 0; r < kR; ++r) sums.at[n][r] += w * x[r];
  }
}

using Codes = uint8_t __attribute__((vector_size(kVectorBytes)));

/// decode() maps the two NaN codes of E4M3, all ones below the sign, to a number: so rows are
/// watched for them. Doubling a code drops its sign.
inline constexpr uint8_t kDoubledNan = 0xFE;

[[gnu::always_inline]] inline Codes larger(const Codes& left, const Codes& right) {
  return left > right ? left : right;
}

[[gnu::always_inline]] inline bool any_nan(const Codes& most) {
  using Wide = uint64_t __attribute__((vector_size(kVectorBytes)));
  const Wide found = same_bits<Wide>(most == kDoubledNan);
  uint64_t any = 0;
  for (int lane = 0; lane < kVectorBytes / 8; ++lane) any |= found[lane];
  return any != 0;
}

[[gnu::noinline]] inline bool has_nan(const unsigned char* row, int count) {
  bool any = false;
  for (int k = 0; k < count; ++k) any |= (row[k] << 1 & 0xFF) == kDoubledNan;
  return any;
}

/// One cache line of weights to vectors, and `most` the largest doubled code of a type whose NaN
/// codes decode() does not know.
template <class W, int kSteps>
[[gnu::always_inline]] inline void decode_line(const unsigned char* line, Vec (&out)[kSteps],
                                               Codes& most) {
#if defined(__AVX512VBMI__)
  if constexpr (W::kScaled) return look_up_f8(line, out);
#endif
  if constexpr (W::kScaled)
    for (int part = 0; part < kLineBytes; part += kVectorBytes) {
      const Codes codes = load<Codes>(line + part);
      most = larger(codes + codes, most);
    }
  for (int step = 0; step < kSteps; ++step) out[step] = W::decode(line + step * kLanes * W::kBytes);
}

/// Elements [begin, end), whole cache lines of weights. With one activation row the loads run far
/// enough ahead for the hardware to follow the streams, and asking would take miss buffers from
/// them; with more rows arithmetic fills the processor's window, so each line is asked for.
template <class W, int kN, int kR>
[[gnu::always_inline]] inline void dot_lines(const DotInput<kN, kR>& input, int begin, int end,
                                             DotSums<kN, kR>& sums, Codes& most) {
  constexpr int kLine = kLineBytes / W::kBytes, kSteps = kLine / kLanes;
  for (int k = begin; k < end; k += kLine) {
    Vec w[kN][kSteps];
    for (int n = 0; n < kN; ++n) {
      const unsigned char* line = input.weight[n] + int64_t{k} * W::kBytes;
      if constexpr (kR > 1) __builtin_prefetch(line + kPrefetchBytes, 0, kPrefetchLevel);
      decode_line<W>(line, w[n], most);
    }
    for (int step = 0; step < kSteps; ++step)
      for (int r = 0; r < kR; ++r) {
        const Vec x = load<Vec>(input.x[r] + k + step * kLanes);
        for (int n = 0; n < kN; ++n) sums.at[n][r] += w[n][step] * x;
      }
  }
}

/// The last depth % kLanes elements of every row, padded with zeros to one vector.
template <class W, int kN, int kR>
struct DotTail {
  float x[kR][kLanes] = {};
  unsigned char weight[kN][kVectorBytes] = {};

  [[gnu::noinline]] DotTail(const DotInput<kN, kR>& input, int begin, int count) {
    for (int r = 0; r < kR; ++r)
      __builtin_memcpy(x[r], input.x[r] + begin, static_cast<size_t>(count) * sizeof(float));
    for (int n = 0; n < kN; ++n)
      __builtin_memcpy(weight[n], input.weight[n] + int64_t{begin} * W::kBytes,
                       static_cast<size_t>(count * W::kBytes));
  }
  DotInput<kN, kR> input() const {
    DotInput<kN, kR> padded;
    for (int r = 0; r < kR; ++r) padded.x[r] = x[r];
    for (int n = 0; n < kN; ++n) padded.weight[n] = weight[n];
    return padded;
  }
};

template <class W, int kN, int kR>
[[gnu::always_inline]] inline void dot_rest(const DotInput<kN, kR>& input, int begin, int depth,
                                            DotSums<kN, kR>& sums) {
  const int whole = depth - depth % kLanes;
  for (int k = begin; k < whole; k += kLanes) dot_step<W>(input, k, sums);
  if (whole < depth) {
    const DotTail<W, kN, kR> tail(input, whole, depth - whole);
    dot_step<W>(tail.input(), 0, sums);
  }
}

/// Adds one scale block. Each is summed on its own and scaled once, so a scale costs one
/// multiply-add per 128 elements and cannot overflow a decoded weight.
template <class W, int kN, int kR>
[[gnu::always_inline]] inline void fold(const DotSums<kN, kR>& block, const float* const* scale,
                                        int index, DotSums<kN, kR>& sums) {
  for (int n = 0; n < kN; ++n) {
    const float factor = scale[n][index] * W::kUnit;
    for (int r = 0; r < kR; ++r) sums.at[n][r] += factor * block.at[n][r];
  }
}

/// kN weight rows from `first`, `apart` rows from each other, times activation rows
/// [row, row + kR).
template <class W, int kN, int kR>
[[gnu::noinline]] void dot_tile(const DotTask& task, int first, int apart, int row) {
  const WeightView& weight = task.weight;
  const int depth = weight.in_features;
  DotInput<kN, kR> input;
  for (int n = 0; n < kN; ++n)
    input.weight[n] = weight.data + (first + n * apart) * weight.row_bytes;
  for (int r = 0; r < kR; ++r) input.x[r] = task.x[row + r];
  DotSums<kN, kR> sums;
  Codes most = {};
  bool suspect = false;
  if constexpr (W::kScaled) {
    const float* scale[kN];
    for (int n = 0; n < kN; ++n)
      scale[n] = weight.scale + (first + n * apart) / kScaleSide * weight.scale_cols;
    const int blocks = depth / kScaleSide;
    for (int index = 0; index < blocks; ++index) {
      DotSums<kN, kR> block;
      dot_lines<W>(input, index * kScaleSide, (index + 1) * kScaleSide, block, most);
      fold<W>(block, scale, index, sums);
    }
    if (blocks * kScaleSide < depth) {
      const int whole = depth - depth % kLineBytes;
      DotSums<kN, kR> block;
      dot_lines<W>(input, blocks * kScaleSide, whole, block, most);
      dot_rest<W>(input, whole, depth, block);
      fold<W>(block, scale, blocks, sums);
      for (int n = 0; n < kN; ++n)
        suspect = suspect || has_nan(input.weight[n] + whole, depth - whole);
    }
    suspect = suspect || any_nan(most);
  } else {
    const int whole = depth - depth % (kLineBytes / W::kBytes);
    dot_lines<W>(input, 0, whole, sums, most);
    dot_rest<W>(input, whole, depth, sums);
  }
  for (int n = 0; n < kN; ++n)
    for (int r = 0; r < kR; ++r) task.y[row + r][first + n * apart] = sum_lanes(sums.at[n][r]);
  if (suspect) [[unlikely]]
    for (int n = 0; n < kN; ++n)
      if (has_nan(input.weight[n], depth))
        for (int r = 0; r < kR; ++r) task.y[row + r][first + n * apart] = __builtin_nanf("");
}

/// `count` weight rows from `first`, `apart` rows from each other, and kR activation rows.
template <class W, int kR>
void dot_block(const DotTask& task, int first, int apart, int count, int row) {
  constexpr int kN = tile_weights<W, kR>();
  int n = 0;
  for (; n + kN <= count; n += kN) dot_tile<W, kN, kR>(task, first + n * apart, apart, row);
  for (; n < count; ++n) dot_tile<W, 1, kR>(task, first + n * apart, apart, row);
}

/// The rows of a block are as far apart as the task allows, so that each of them is followed in
/// memory by the same row of the next block: kDotBlock long streams. All activation rows pass over
/// a block while it is in cache.
template <class W>
void dot_typed(const DotTask& task) {
  const int apart = (task.last - task.first + kDotBlock - 1) / kDotBlock;
  for (int first = task.first; first < task.first + apart; ++first) {
    const int count = (task.last - first + apart - 1) / apart;
    int row = 0;
    for (; row + kMaxDotRows <= task.rows; row += kMaxDotRows)
      dot_block<W, kMaxDotRows>(task, first, apart, count, row);
    switch (task.rows - row) {
      case 3: dot_block<W, 3>(task, first, apart, count, row); break;
      case 2: dot_block<W, 2>(task, first, apart, count, row); break;
      case 1: dot_block<W, 1>(task, first, apart, count, row); break;
      default: break;
    }
  }
}

inline void dot_any(const DotTask& task) {
  switch (task.weight.dtype) {
    case DType::kF32: return dot_typed<F32Weight>(task);
    case DType::kBF16: return dot_typed<Bf16Weight>(task);
    case DType::kF8E4M3: return dot_typed<F8Weight>(task);
    default: return;
  }
}

}  // namespace
}  // namespace tessera::cpu
