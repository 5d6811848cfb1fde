// SPDX-License-Identifier: Apache-2.0
// Walking the rows of a launch span by span; reading the rows before it from a ring, and writing
// its last rows back.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "ops/rows.h"

namespace tessera::cpu {

/// fn(span, row within the span, thread) for every row, rows of `work` operations each split over
/// threads; empty spans are skipped.
template <class Fn>
void for_each_row(const ops::RowBatch& batch, double work, Fn&& fn) {
  parallel_for(batch.num_rows, grain_for(work), [&](int64_t begin, int64_t end, int thread) {
    auto span = std::upper_bound(
        batch.spans.begin(), batch.spans.end(), begin,
        [](int64_t row, const ops::RowSpan& each) { return row < each.row_begin + each.num_rows; });
    for (int64_t row = begin; row < end; ++row) {
      while (row >= span->row_begin + span->num_rows) ++span;
      fn(*span, static_cast<int>(row - span->row_begin), thread);
    }
  });
}

/// The value `lag` tokens before row `row` of `span`: from the launch's own rows, else from the
/// ring, else (before the sequence began) `zeros`. `rows` is the launch's [num_rows, width] block.
inline const float* lagged_row(const ops::RowSpan& span, const ops::RingRef& ring, int row, int lag,
                               const float* rows, int64_t width, const float* zeros) {
  if (row >= lag) return rows + (span.row_begin + row - lag) * width;
  const int64_t position = span.position + row - lag;
  if (position < 0) return zeros;
  return reinterpret_cast<const float*>(ring.entry(span.slot, position));
}

/// Writes the last `ring.slots` rows of each span at most. Call it after every read of the launch:
/// rows longer than the ring would otherwise overwrite what the first rows look back to.
inline void store_ring_rows(const ops::RowBatch& batch, const ops::RingRef& ring, const float* rows,
                            int64_t width) {
  for (const ops::RowSpan& span : batch.spans) {
    const int count = std::min(span.num_rows, ring.slots);
    for (int row = span.num_rows - count; row < span.num_rows; ++row) {
      std::memcpy(ring.entry(span.slot, span.position + row), rows + (span.row_begin + row) * width,
                  static_cast<size_t>(width) * sizeof(float));
    }
  }
}

}  // namespace tessera::cpu
