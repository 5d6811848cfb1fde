// SPDX-License-Identifier: Apache-2.0
// Who writes which ring entry when one launch both reads and writes the ring of raw index keys.
#pragma once

#include <cstdint>

#include "ops/rows.h"

namespace tessera::cuda::device {

/// A launch reads the ring for one thing only: the block that was open before it and completes in
/// it. The warp that pools this block reads the entries first and then also writes the rows of the
/// launch that fall on the same slots; every other row writes its own entry. So no launch, however
/// much longer than the ring, needs a second one.
struct RingRule {
  int64_t begin;  // position of the span's first row
  int64_t end;    // one past its last row
  int block;

  __device__ RingRule(const ops::RowSpan& span, int block)
      : begin(span.position), end(span.position + span.num_rows), block(block) {}

  __device__ int64_t open_block() const { return begin - begin % block; }
  __device__ bool ring_is_read() const { return begin % block != 0 && open_block() + block <= end; }

  /// Whether the row at `position` writes its entry itself.
  __device__ bool row_writes(int64_t position, int slots) const {
    if (position < end - slots) return false;  // a later row has the same slot
    if (!ring_is_read()) return true;
    return ((position - open_block()) & (slots - 1)) >= begin - open_block();
  }

  /// Last row of the launch on the slot of `position`, which lies before the launch; `position`
  /// itself when there is none.
  __device__ int64_t successor(int64_t position, int slots) const {
    return position + (end - 1 - position) / slots * slots;
  }
};

}  // namespace tessera::cuda::device
