// SPDX-License-Identifier: Apache-2.0
// Who runs in the next round. Pure: no clock, no thread, no model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera {

/// A running sequence as the scheduler sees it, in order of arrival.
struct RunningView {
  int64_t position = 0;     // tokens absorbed so far
  int64_t prompt_left = 0;  // prompt tokens still to absorb; 0: it decodes
};

struct PrefillStep {
  size_t index = 0;  // into the running sequences
  int rows = 0;
};

/// Decode rows go first, then at most one chunk of one prompt, so a long prompt never stops the
/// others.
struct Round {
  std::vector<size_t> decode{};
  std::optional<PrefillStep> prefill{};

  bool empty() const { return decode.empty() && !prefill; }
};

/// Rows of the next prefill launch: it ends on an absolute multiple of `chunk` counted from the
/// page that holds `position`, or at the end of the prompt. Launches cut this way give the same
/// bits for any history.
int prefill_rows(int64_t position, int64_t prompt_left, int chunk);

/// First come, first served: every decoding sequence, and the oldest one that still reads its
/// prompt.
Round plan_round(std::span<const RunningView> running, int chunk);

}  // namespace tessera
