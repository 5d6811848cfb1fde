// SPDX-License-Identifier: Apache-2.0
// Scores of one query row against consecutive index keys: the decode path of block selection.
// Local to the including file: see linear_level.h.
#pragma once

#include "cpu/fast/linear_vec.h"
#include "cpu/fast/rows_level.h"

namespace tessera::cpu {
namespace {

inline constexpr int kScoreKeys = 4;  // keys of a tile: their sums end in one vector
inline constexpr int kScoreHeads = kVectorBytes == 64 ? 4 : 2;

inline constexpr int kScoreLine = 16;     // floats of a cache line
inline constexpr int kScoreLocality = 2;  // second-level cache

using Quad = float __attribute__((vector_size(16)));

[[gnu::always_inline]] inline Quad fold_to_quad(const Vec& value) {
#if TESSERA_VECTOR_BYTES == 64
  using Octet = float __attribute__((vector_size(32)));
  const Octet octet = __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  const auto octet = value;
#endif
#if TESSERA_VECTOR_BYTES >= 32
  return __builtin_shufflevector(octet, octet, 0, 1, 2, 3) +
         __builtin_shufflevector(octet, octet, 4, 5, 6, 7);
#else
  return octet;
#endif
}

/// Lane n is the sum of the lanes of values[n], each folded in the same order.
[[gnu::always_inline]] inline Quad sum_four(const Vec (&values)[kScoreKeys]) {
  const Quad a = fold_to_quad(values[0]), b = fold_to_quad(values[1]);
  const Quad c = fold_to_quad(values[2]), d = fold_to_quad(values[3]);
  const Quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) +
                  __builtin_shufflevector(a, b, 2, 6, 3, 7);  // a02 b02 a13 b13
  const Quad cd =
      __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/// total += relu(dot) of kHeads heads, one lane per key. NaN fails the comparison and stays.
template <int kHeads>
[[gnu::always_inline]] inline void add_heads(const float* const (&keys)[kScoreKeys],
                                             const float* queries, int dim, Quad& total) {
  Vec sum[kHeads][kScoreKeys] = {};
  const int whole = dim - dim % kLanes;
  for (int d = 0; d < whole; d += kLanes) {
    Vec key[kScoreKeys];
#pragma GCC unroll 4
    for (int n = 0; n < kScoreKeys; ++n) key[n] = load<Vec>(keys[n] + d);
#pragma GCC unroll 4
    for (int head = 0; head < kHeads; ++head) {
      const Vec query = load<Vec>(queries + static_cast<int64_t>(head) * dim + d);
#pragma GCC unroll 4
      for (int n = 0; n < kScoreKeys; ++n) sum[head][n] += query * key[n];
    }
  }
  if (whole < dim) {
    const auto bytes = static_cast<size_t>(dim - whole) * sizeof(float);
    for (int head = 0; head < kHeads; ++head) {
      float query[kLanes] = {};
      __builtin_memcpy(query, queries + static_cast<int64_t>(head) * dim + whole, bytes);
      for (int n = 0; n < kScoreKeys; ++n) {
        float key[kLanes] = {};
        __builtin_memcpy(key, keys[n] + whole, bytes);
        sum[head][n] += load<Vec>(query) * load<Vec>(key);
      }
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    const Quad dot = sum_four(sum[head]);
    total += dot <= 0.0F ? Quad{} : dot;
  }
}

void block_scores(const BlockScores& task) {
  for (int first = 0; first < task.count; first += kScoreKeys) {
    const float* keys[kScoreKeys];
    for (int n = 0; n < kScoreKeys; ++n) {
      const int block = first + n < task.count ? first + n : task.count - 1;
      keys[n] = task.keys + static_cast<int64_t>(block) * task.dim;
    }
    if (task.ahead != nullptr) {
      const float* next = task.ahead + static_cast<int64_t>(first) * task.dim;
      for (int d = 0; d < kScoreKeys * task.dim; d += kScoreLine)
        __builtin_prefetch(next + d, 0, kScoreLocality);
    }
    Quad total = {};
    int head = 0;
    for (; head + kScoreHeads <= task.heads; head += kScoreHeads)
      add_heads<kScoreHeads>(keys, task.queries + static_cast<int64_t>(head) * task.dim, task.dim,
                             total);
    for (; head < task.heads; ++head)
      add_heads<1>(keys, task.queries + static_cast<int64_t>(head) * task.dim, task.dim, total);
    total *= task.scale;
    for (int n = 0; n < kScoreKeys && first + n < task.count; ++n)
      task.scores[first + n] = total[n];
  }
}

}  // namespace
}  // namespace tessera::cpu
