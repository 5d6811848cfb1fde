// SPDX-License-Identifier: Apache-2.0
// Greedy decoding held against reference ids, shared by both kinds of verification.
#pragma once

#include <tessera/error.h>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/loaded_model.h"

namespace tessera {

/// Feeds the reference's own tokens and compares the argmax at every step, so that one rounding tie
/// does not hide what follows it.
struct GreedyComparison {
  int steps = 0;
  int ties = 0;        // mismatches where the reference's margin is below the bound
  int mismatches = 0;  // every other mismatch; a step without a margin has no excuse
  int first_mismatch = -1;
};

/// Errors of all three: those of LoadedModel::run, and kNumerics where logits are NaN.
Result<GreedyComparison> compare_greedy(LoadedModel& model, std::span<const int32_t> prompt,
                                        std::span<const int32_t> expected,
                                        std::span<const double> margin, double margin_bound);

/// Free-running greedy continuation, up to `max_tokens` or the first end-of-text id (included).
Result<std::vector<int32_t>> greedy_continuation(LoadedModel& model,
                                                 std::span<const int32_t> prompt, int max_tokens);

/// Mean negative log-likelihood of ids[1..] given their predecessors. Errors: kInvalidArgument
/// (fewer than 2 ids), kNumerics.
Result<double> mean_nll(LoadedModel& model, std::span<const int32_t> ids);

}  // namespace tessera
