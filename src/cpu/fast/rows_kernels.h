// SPDX-License-Identifier: Apache-2.0
// Source of the kernels of rows_level.h; each rows_<level>.cpp includes it under its own flags.
#pragma once

#include "cpu/fast/linear_vec.h"
#include "cpu/fast/rows_level.h"

namespace tessera::cpu {
namespace {

// Register tiles: accumulators, operands and one broadcast must fit 32 (AVX-512) or 16 registers.
inline constexpr int kProductRows = 8;
inline constexpr int kProductVectors = kVectorBytes == 64 ? 2 : 1;
inline constexpr int kSumHeads = 6;
inline constexpr int kSumVectors = kVectorBytes == 64 ? 4 : 2;
inline constexpr int kLineBytes = 64;
inline constexpr int kLineFloats = kLineBytes / 4;
inline constexpr int kSecondLevel = 2;  // cache locality hint: a tile ahead does not fit the first

using HalfVec = float __attribute__((vector_size(kVectorBytes / 2)));

[[gnu::always_inline]] inline float splat(float value, float) { return value; }
[[gnu::always_inline]] inline Vec splat(float value, const Vec&) { return broadcast(value); }
[[gnu::always_inline]] inline HalfVec splat(float value, const HalfVec&) {
  return value - HalfVec{};
}

/// Asks for the `line`-th cache line of rows [first, first + kRows).
template <int kRows>
[[gnu::always_inline]] inline void request(const Ahead& ahead, int first, int line) {
  if (line * kLineBytes >= ahead.bytes || first + kRows > ahead.count) return;
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
    __builtin_prefetch(ahead.rows[first + row] + line * kLineBytes, 0, kSecondLevel);
}

template <class V, int kRows, int kVectors>
void product_tile(const LaneProducts& task, int first_row, int first_lane) {
  constexpr int kStep = static_cast<int>(sizeof(V) / sizeof(float));
  V sum[kRows][kVectors] = {};
  float* out = task.out + static_cast<int64_t>(first_row) * task.lanes + first_lane;
  if (task.accumulate) {
    for (int row = 0; row < kRows; ++row)
      for (int vec = 0; vec < kVectors; ++vec)
        sum[row][vec] = load<V>(out + static_cast<int64_t>(row) * task.lanes + vec * kStep);
  }
  const float* packed = task.packed + first_lane;
  const float* rows[kRows];
  for (int row = 0; row < kRows; ++row) rows[row] = task.rows[first_row + row];
  for (int begin = 0; begin < task.depth; begin += kLineFloats) {
    const int end = begin + kLineFloats < task.depth ? begin + kLineFloats : task.depth;
    if (first_lane == 0) request<kRows>(task.ahead, first_row, begin / kLineFloats);
#pragma GCC unroll 2
    for (int d = begin; d < end; ++d) {
      V lane[kVectors];
#pragma GCC unroll 2
      for (int vec = 0; vec < kVectors; ++vec) lane[vec] = load<V>(packed + vec * kStep);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const V value = splat(rows[row][d], V{});
#pragma GCC unroll 2
        for (int vec = 0; vec < kVectors; ++vec) sum[row][vec] += value * lane[vec];
      }
      packed += task.lanes;
    }
  }
  for (int row = 0; row < kRows; ++row)
    for (int vec = 0; vec < kVectors; ++vec)
      store(out + static_cast<int64_t>(row) * task.lanes + vec * kStep, sum[row][vec]);
}

template <class V, int kVectors>
void product_columns(const LaneProducts& task, int lane) {
  int row = 0;
  for (; row + kProductRows <= task.count; row += kProductRows)
    product_tile<V, kProductRows, kVectors>(task, row, lane);
  switch (task.count - row) {
    case 1: product_tile<V, 1, kVectors>(task, row, lane); break;
    case 2: product_tile<V, 2, kVectors>(task, row, lane); break;
    case 3: product_tile<V, 3, kVectors>(task, row, lane); break;
    case 4: product_tile<V, 4, kVectors>(task, row, lane); break;
    case 5: product_tile<V, 5, kVectors>(task, row, lane); break;
    case 6: product_tile<V, 6, kVectors>(task, row, lane); break;
    case 7: product_tile<V, 7, kVectors>(task, row, lane); break;
    default: break;
  }
}

void lane_products(const LaneProducts& task) {
  constexpr int kTile = kProductVectors * kLanes;
  int lane = 0;
  for (; lane + kTile <= task.lanes; lane += kTile)
    product_columns<Vec, kProductVectors>(task, lane);
  for (; lane + kLanes <= task.lanes; lane += kLanes) product_columns<Vec, 1>(task, lane);
  constexpr int kHalf = kLanes / 2;  // few lanes: the narrow registers issue twice as often
  for (; lane + kHalf <= task.lanes; lane += kHalf) product_columns<HalfVec, 1>(task, lane);
  for (; lane < task.lanes; ++lane) product_columns<float, 1>(task, lane);
}

/// Columns [first, first + kVectors * lanes of V) of `kHeads` heads.
template <class V, int kHeads, int kVectors>
void sum_tile(const WeightedSum& task, int first_head, int first) {
  constexpr int kStep = static_cast<int>(sizeof(V) / sizeof(float));
  V sum[kHeads][kVectors];
  float* out = task.out + static_cast<int64_t>(first_head) * task.width + first;
  for (int head = 0; head < kHeads; ++head)
    for (int vec = 0; vec < kVectors; ++vec)
      sum[head][vec] = load<V>(out + static_cast<int64_t>(head) * task.width + vec * kStep);
  const float* weights = task.weights + first_head;
  for (int row = 0; row < task.count; ++row) {
    const float* values = task.rows[row] + first;
    if (first_head == 0) {
      constexpr int kTileLines = (kVectors * kStep + kLineFloats - 1) / kLineFloats;
#pragma GCC unroll 4
      for (int line = 0; line < kTileLines; ++line)
        request<1>(task.ahead, row, first / kLineFloats + line);
    }
    V value[kVectors];
#pragma GCC unroll 4
    for (int vec = 0; vec < kVectors; ++vec) value[vec] = load<V>(values + vec * kStep);
#pragma GCC unroll 6
    for (int head = 0; head < kHeads; ++head) {
      const V weight = splat(weights[head], V{});
#pragma GCC unroll 4
      for (int vec = 0; vec < kVectors; ++vec) sum[head][vec] += weight * value[vec];
    }
    weights += task.weight_stride;
  }
  for (int head = 0; head < kHeads; ++head)
    for (int vec = 0; vec < kVectors; ++vec)
      store(out + static_cast<int64_t>(head) * task.width + vec * kStep, sum[head][vec]);
}

template <int kHeads>
void sum_heads(const WeightedSum& task, int head) {
  constexpr int kTile = kSumVectors * kLanes;
  int at = 0;
  for (; at + kTile <= task.width; at += kTile) sum_tile<Vec, kHeads, kSumVectors>(task, head, at);
  for (; at + kLanes <= task.width; at += kLanes) sum_tile<Vec, kHeads, 1>(task, head, at);
  for (; at < task.width; ++at) sum_tile<float, kHeads, 1>(task, head, at);
}

void weighted_sum(const WeightedSum& task) {
  int head = 0;
  for (; head + kSumHeads <= task.heads; head += kSumHeads) sum_heads<kSumHeads>(task, head);
  switch (task.heads - head) {
    case 1: sum_heads<1>(task, head); break;
    case 2: sum_heads<2>(task, head); break;
    case 3: sum_heads<3>(task, head); break;
    case 4: sum_heads<4>(task, head); break;
    case 5: sum_heads<5>(task, head); break;
    default: break;
  }
}

template <class V, int kVectors>
void delta_tile(const DeltaStep& task, int first) {
  constexpr int kStep = static_cast<int>(sizeof(V) / sizeof(float));
  V along_key[kVectors] = {};
  V along_query[kVectors] = {};
  const float* read = task.state + first;
  for (int d = 0; d < task.key_dim; ++d, read += task.state_stride) {
    const V key = splat(task.key[d], V{});
    const V query = splat(task.query[d], V{});
#pragma GCC unroll 8
    for (int vec = 0; vec < kVectors; ++vec) {
      const V state = load<V>(read + vec * kStep);
      along_key[vec] += state * key;
      along_query[vec] += state * query;
    }
  }
  V update[kVectors];
  for (int vec = 0; vec < kVectors; ++vec) {
    const int at = first + vec * kStep;
    update[vec] = (load<V>(task.value + at) - along_key[vec] * task.decay) * task.beta;
    const V out = along_query[vec] * task.decay + update[vec] * task.key_query;
    store(task.out + at, out);
  }
  float* write = task.state + first;
  for (int d = 0; d < task.key_dim; ++d, write += task.state_stride) {
    const V key = splat(task.key[d], V{});
#pragma GCC unroll 8
    for (int vec = 0; vec < kVectors; ++vec) {
      const V state = load<V>(write + vec * kStep) * task.decay + key * update[vec];
      store(write + vec * kStep, state);
    }
  }
}

void delta_step(const DeltaStep& task) {
  if (task.columns == kDeltaColumns) {
    delta_tile<Vec, kDeltaColumns / kLanes>(task, 0);
    return;
  }
  int at = 0;
  for (; at + kLanes <= task.columns; at += kLanes) delta_tile<Vec, 1>(task, at);
  for (; at < task.columns; ++at) delta_tile<float, 1>(task, at);
}

}  // namespace
}  // namespace tessera::cpu
