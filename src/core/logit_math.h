// SPDX-License-Identifier: Apache-2.0
// Small functions of one row of logits.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

namespace tessera {

/// Index of the largest logit, ties to the lowest id; NaN never wins. -1 for an empty row.
inline int32_t argmax(std::span<const float> logits) {
  int32_t best = -1;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::isnan(logits[id])) continue;
    if (best < 0 || logits[id] > logits[static_cast<size_t>(best)]) best = static_cast<int32_t>(id);
  }
  return best;
}

/// log(sum(exp(logits))), in double.
inline double log_sum_exp(std::span<const float> logits) {
  double highest = -INFINITY;
  for (const float logit : logits) highest = std::fmax(highest, static_cast<double>(logit));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - highest);
  return highest + std::log(sum);
}

/// Natural log of the softmax probability of `token`.
inline double log_probability(std::span<const float> logits, int32_t token) {
  return static_cast<double>(logits[static_cast<size_t>(token)]) - log_sum_exp(logits);
}

}  // namespace tessera
