// SPDX-License-Identifier: Apache-2.0
// What the measured depths of a case say about the goals.
#include <tessera/bench.h>
#include <algorithm>

namespace tessera {

bool DraftCase::same_text() const {
  return std::all_of(rows.begin(), rows.end(), [](const DraftRow& row) { return row.same_text; });
}

const DraftRow* DraftCase::best_fixed() const {
  const DraftRow* best = nullptr;
  for (const DraftRow& row : rows) {
    if (row.depth == kDraftAuto) continue;
    if (best == nullptr || row.tokens_per_second > best->tokens_per_second) best = &row;
  }
  return best;
}

const DraftRow* DraftCase::adaptive() const {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [](const DraftRow& row) { return row.depth == kDraftAuto; });
  return found == rows.end() ? nullptr : &*found;
}

double DraftCase::adaptive_ratio() const {
  const DraftRow* const chosen = adaptive();
  const DraftRow* const best = best_fixed();
  if (chosen == nullptr || best == nullptr || best->tokens_per_second <= 0) return 0;
  return chosen->tokens_per_second / best->tokens_per_second;
}

double DraftCase::times_goal(const DraftRow& row) const {
  if (row.depth <= 0 || rows.empty() || rows.front().depth != 0) return 0;
  const DraftRow& step = rows.front();
  if (step.bytes_per_round <= 0) return 0;
  const double bytes_ratio = row.bytes_per_round / step.bytes_per_round;
  const double goal = kRoundGoal * bytes_ratio * step.seconds_per_round;
  return goal > 0 ? row.seconds_per_round / goal : 0;
}

}  // namespace tessera
