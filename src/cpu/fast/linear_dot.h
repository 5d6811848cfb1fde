// SPDX-License-Identifier: Apache-2.0
// Decode kernel: several weight rows against several activation rows, one vector sum per pair.
// Local to the including file: see linear_level.h.
#pragma once

#include "cpu/fast/linear_level.h"
#include "cpu/fast/linear_vec.h"

namespace tessera::cpu {
namespace {

inline constexpr int kScaleSide = 128;  // ops::kScaleBlock
inline constexpr int kLineBytes = 64;
inline constexpr int kPrefetchLevel = 2;  // second-level cache: a tile is larger than the first
inline constexpr int kMaxDotRows = 4;     // activation rows that share one pass over the weights

template <int kN, int kR>
struct DotState {
  const unsigned char* weight[kN];
  const float* scale[kN];
  const float* x[kR];
  Vec sum[kN][kR];
  int64_t ahead;  // bytes to the same place of the next tile
};

template <class W, int kN, int kR>
[[gnu::always_inline]] inline void dot_step(const DotState<kN, kR>& state, int k,
                                            Vec (&sum)[kN][kR]) {
  Vec x[kR];
  for (int r = 0; r < kR; ++r) x[r] = load<Vec>(state.x[r] + k);
  for (int n = 0; n < kN; ++n) {
    const Vec w = W::decode(state.weight[n] + int64_t{k} * W::kBytes);
    for (int r = 0; r < kR; ++r) sum[n][r] += w * x[r];
  }
}

/// sum += weight * x over [begin, end), a multiple of kLanes. One prefetch per cache line.
template <class W, int kN, int kR>
[[gnu::always_inline]] inline void dot_span(const DotState<kN, kR>& state, int begin, int end,
                                            Vec (&sum)[kN][kR]) {
  constexpr int kLine = kLineBytes / W::kBytes;
  int k = begin;
  for (; k + kLine <= end; k += kLine) {
    for (int n = 0; n < kN; ++n)
      __builtin_prefetch(state.weight[n] + int64_t{k} * W::kBytes + state.ahead, 0, kPrefetchLevel);
    for (int step = 0; step < kLine; step += kLanes) dot_step<W>(state, k + step, sum);
  }
  for (; k < end; k += kLanes) dot_step<W>(state, k, sum);
}

/// The last in_features % kLanes elements, padded with zeros to one vector.
template <class W, int kN, int kR>
[[gnu::always_inline]] inline void dot_tail(const DotState<kN, kR>& state, int begin, int count,
                                            Vec (&sum)[kN][kR]) {
  float x[kR][kLanes] = {};
  for (int r = 0; r < kR; ++r)
    __builtin_memcpy(x[r], state.x[r] + begin, static_cast<size_t>(count) * sizeof(float));
  for (int n = 0; n < kN; ++n) {
    unsigned char raw[kVectorBytes] = {};
    __builtin_memcpy(raw, state.weight[n] + int64_t{begin} * W::kBytes,
                     static_cast<size_t>(count * W::kBytes));
    const Vec w = W::decode(raw);
    for (int r = 0; r < kR; ++r) sum[n][r] += w * load<Vec>(x[r]);
  }
}

template <class W, int kN, int kR>
[[gnu::always_inline]] inline void dot_plain(DotState<kN, kR>& state, int depth) {
  const int whole = depth - depth % kLanes;
  dot_span<W>(state, 0, whole, state.sum);
  if (whole < depth) dot_tail<W>(state, whole, depth - whole, state.sum);
}

/// Every scale block is summed on its own and then scaled, so a scale costs one multiply-add per
/// 128 elements and cannot overflow the decoded weights.
template <class W, int kN, int kR>
[[gnu::always_inline]] inline void dot_scaled(DotState<kN, kR>& state, int depth) {
  for (int begin = 0, block = 0; begin < depth; begin += kScaleSide, ++block) {
    const int end = begin + kScaleSide < depth ? begin + kScaleSide : depth;
    const int whole = end - (end - begin) % kLanes;
    Vec sum[kN][kR] = {};
    dot_span<W>(state, begin, whole, sum);
    if (whole < end) dot_tail<W>(state, whole, end - whole, sum);
    for (int n = 0; n < kN; ++n) {
      const float scale = state.scale[n][block] * W::kUnit;
      for (int r = 0; r < kR; ++r) state.sum[n][r] += scale * sum[n][r];
    }
  }
}

/// decode() maps the two NaN codes of E4M3 to 480, so rows are searched for them.
inline bool has_f8_nan(const unsigned char* row, int count) {
  constexpr int kStep = kVectorBytes;
  using Block = uint8_t __attribute__((vector_size(kStep)));
  constexpr uint8_t kMagnitude = 0x7F;
  Block found = {};
  int k = 0;
  for (; k + kStep <= count; k += kStep)
    found |= same_bits<Block>((load<Block>(row + k) & kMagnitude) == kMagnitude);
  bool any = false;
  for (; k < count; ++k) any |= (row[k] & kMagnitude) == kMagnitude;
  using Wide = uint64_t __attribute__((vector_size(kStep)));
  const Wide wide = same_bits<Wide>(found);
  uint64_t bits = 0;
  for (int lane = 0; lane < kStep / 8; ++lane) bits |= wide[lane];
  return any || bits != 0;
}

template <class W, int kN, int kR>
void dot_tile(const DotTask& task, int first, int row) {
  const WeightView& weight = task.weight;
  DotState<kN, kR> state;
  for (int n = 0; n < kN; ++n) {
    state.weight[n] = weight.data + (first + n) * weight.row_bytes;
    state.scale[n] = weight.scale + (first + n) / kScaleSide * weight.scale_cols;
    for (int r = 0; r < kR; ++r) state.sum[n][r] = Vec{};
  }
  state.ahead = kN * weight.row_bytes;
  for (int r = 0; r < kR; ++r) state.x[r] = task.x[row + r];
  if constexpr (W::kScaled)
    dot_scaled<W>(state, weight.in_features);
  else
    dot_plain<W>(state, weight.in_features);
  for (int n = 0; n < kN; ++n)
    for (int r = 0; r < kR; ++r) task.y[row + r][first + n] = sum_lanes(state.sum[n][r]);
  if constexpr (W::kScaled)
    for (int n = 0; n < kN; ++n)
      if (has_f8_nan(state.weight[n], weight.in_features))
        for (int r = 0; r < kR; ++r) task.y[row + r][first + n] = __builtin_nanf("");
}

/// kN weight rows from `first`, all activation rows: the weights stay in cache between passes.
template <class W, int kN>
void dot_block(const DotTask& task, int first) {
  int row = 0;
  for (; row + kMaxDotRows <= task.rows; row += kMaxDotRows)
    dot_tile<W, kN, kMaxDotRows>(task, first, row);
  switch (task.rows - row) {
    case 3: return dot_tile<W, kN, 3>(task, first, row);
    case 2: return dot_tile<W, kN, 2>(task, first, row);
    case 1: return dot_tile<W, kN, 1>(task, first, row);
    default: return;
  }
}

template <class W>
void dot_typed(const DotTask& task) {
  constexpr int kWeightRows = kVectorBytes == 64 ? 4 : 2;
  int n = task.first;
  for (; n + kWeightRows <= task.last; n += kWeightRows) dot_block<W, kWeightRows>(task, n);
  for (; n < task.last; ++n) dot_block<W, 1>(task, n);
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
