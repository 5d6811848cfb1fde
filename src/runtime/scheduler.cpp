// SPDX-License-Identifier: Apache-2.0
// A round: a decode row of every sequence, and the first waiting prompt's next rows.
#include "runtime/scheduler.h"

#include <algorithm>

#include "ops/rows.h"

namespace tessera {

int prefill_rows(int64_t position, int64_t prompt_left, int chunk) {
  const int64_t page_start = position / ops::kPageTokens * ops::kPageTokens;
  return static_cast<int>(std::min(page_start + chunk - position, prompt_left));
}

Round plan_round(std::span<const RunningView> running, int chunk) {
  Round round;
  for (size_t index = 0; index < running.size(); ++index) {
    const RunningView& view = running[index];
    if (view.prompt_left == 0) {
      round.decode.push_back(index);
    } else if (!round.prefill) {
      round.prefill = PrefillStep{index, prefill_rows(view.position, view.prompt_left, chunk)};
    }
  }
  return round;
}

}  // namespace tessera
