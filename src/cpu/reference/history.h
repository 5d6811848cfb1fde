// SPDX-License-Identifier: Apache-2.0
// One view over what a sequence has seen: rows of this launch, before them its ring.
#pragma once

#include <algorithm>
#include <cstring>

#include "ops/rows.h"

namespace tessera::cpu::reference {

/// Reads must all happen before `store`: a launch longer than the ring overwrites its own past.
template <class T>
class History {
 public:
  /// `rows` is the first row of the span; rows are `stride` elements apart, `width` are kept.
  History(const ops::RowSpan& span, const ops::RingRef& ring, const T* rows, size_t stride,
          size_t width)
      : span_(span), ring_(ring), rows_(rows), stride_(stride), width_(width) {}

  /// Entry of the token at `position`; nullptr before the start of the sequence.
  const T* at(int64_t position) const {
    if (position < 0) return nullptr;
    if (position >= span_.position)
      return rows_ + static_cast<size_t>(position - span_.position) * stride_;
    return reinterpret_cast<const T*>(ring_.entry(span_.slot, position));
  }

  /// Leaves the newest rows of the span in the ring.
  void store() const {
    const int64_t end = span_.position + span_.num_rows;
    const int64_t kept = std::min<int64_t>(span_.num_rows, ring_.slots);
    for (int64_t position = end - kept; position < end; ++position)
      std::memcpy(ring_.entry(span_.slot, position), at_launch(position), width_ * sizeof(T));
  }

 private:
  const T* at_launch(int64_t position) const {
    return rows_ + static_cast<size_t>(position - span_.position) * stride_;
  }

  const ops::RowSpan& span_;
  const ops::RingRef& ring_;
  const T* rows_;
  size_t stride_;
  size_t width_;
};

}  // namespace tessera::cpu::reference
