// SPDX-License-Identifier: Apache-2.0
// Closes a round where the next one begins.
#include "eval/round_costs.h"

namespace tessera {

void RoundCosts::embed(const ops::EmbedArgs& args) {
  if (current_rows_ > 0) {
    const ops::Cost cost = total_cost();
    Rounds& rounds = rounds_[current_rows_];
    rounds.count += 1;
    rounds.bytes += cost.bytes_read + cost.bytes_written;
  }
  clear();
  current_rows_ = args.rows;
  ProfilingOps::embed(args);
}

double RoundCosts::bytes_per_round(int rows) const {
  const auto found = rounds_.find(rows);
  return found == rounds_.end() ? 0 : found->second.bytes / found->second.count;
}

void RoundCosts::restart() {
  clear();
  rounds_.clear();
  current_rows_ = 0;
}

}  // namespace tessera
