// SPDX-License-Identifier: Apache-2.0
// What the backends share of a round: where its parts lie in a block of memory, what they hold at
// first, and the order of its reports.
#pragma once

#include <array>
#include <cstddef>

#include "ops/ops.h"

namespace tessera::ops {

/// Offsets depend on the counts alone, so a recorded launch finds the parts of a later round where
/// those of the first one were.
class RoundLayout {
 public:
  RoundLayout() = default;
  RoundLayout(int num_spans, int num_rows);

  size_t bytes() const { return bytes_; }
  /// The parts within a block of `bytes()`, aligned for any type.
  RoundState at(std::byte* block) const;

  /// Outcomes, times and draws are one run of bytes of the block.
  size_t report_offset() const { return outcomes_; }
  size_t report_bytes() const { return bytes_ - outcomes_; }
  /// Of a copy of that run in host memory.
  RoundReport report(const std::byte* copy) const;

 private:
  int num_spans_ = 0, num_rows_ = 0;
  size_t spans_ = 0, ids_ = 0, positions_ = 0, row_numbers_ = 0, settings_ = 0, next_ids_ = 0;
  size_t draft_spans_ = 0, draft_ids_ = 0, draft_positions_ = 0, draft_sources_ = 0;
  size_t draft_settings_ = 0, drafted_ = 0, sequences_ = 0;
  size_t outcomes_ = 0, times_ = 0, drawn_ = 0;
  size_t bytes_ = 0;
};

/// Fills a state in host memory, zero so far: the rows as they are handed over; nothing is drawn or
/// drafted yet. Throws std::logic_error when the inputs do not belong together or a sequence has
/// more rows or stop tokens than a round can hold.
void start_round(const RoundInputs& inputs, const RoundState& state);

/// Buffers of a part of a round; `spans` and `rows` are what `Ops::use_rows` was asked for. Throws
/// std::logic_error when the round has fewer.
LaunchBuffers buffers_of(const RoundState& state, RoundPart part, int spans, int rows);

/// Places of the reports of a backend: at most two are not read yet, and the one that was read last
/// stays. Throws std::logic_error when there is no place for another one, or none to read.
class ReportQueue {
 public:
  static constexpr int kPlaces = 3;

  size_t push();
  size_t pop();

 private:
  int first_ = 0, unread_ = 0;
};

}  // namespace tessera::ops
