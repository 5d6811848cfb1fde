// SPDX-License-Identifier: Apache-2.0
// The rows of a launch as kernels see them: lengths and addresses are read from device memory, so a
// recorded launch can be repeated for other lengths.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/rows.h"

namespace tessera::cuda::device {

/// Filled by Context::begin, or by the kernels of a round. `spans` are host RowSpans copied as they
/// are: slot and pages point to device memory. NOTE: because of rounds, spans, ids and positions
/// may be read after wait_for_inputs() only.
struct Batch {
  const ops::RowSpan* spans = nullptr;  // [num_spans]
  const int32_t* row_span = nullptr;    // [num_rows] index of the span of each row
  int num_spans = 0;
  int num_rows = 0;
};

__device__ __forceinline__ std::byte* ring_entry(const ops::RingRef& ring, std::byte* slot,
                                                 int64_t position) {
  // Ring sizes are powers of two (StateLayout), positions are not negative.
  const auto index = static_cast<size_t>(position) & static_cast<size_t>(ring.slots - 1);
  return slot + ring.offset + index * ring.entry_bytes;
}

/// Start of this layer's part of the page that holds token `position`.
__device__ __forceinline__ std::byte* page_of(const ops::PageRef& cache, const int32_t* pages,
                                              int64_t position) {
  const auto id = static_cast<size_t>(pages[position / ops::kPageTokens]);
  return cache.pool + id * cache.page_stride + cache.offset;
}

}  // namespace tessera::cuda::device
