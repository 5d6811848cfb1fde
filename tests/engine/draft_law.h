// SPDX-License-Identifier: Apache-2.0
// The law of drafted text on a small vocabulary: three tokens in a row follow the product of the
// distributions that the logits define, whatever was drafted and rejected.
#pragma once

#include <tessera/engine.h>
#include <tessera/sampling.h>

#include <vector>

namespace tessera::test {

struct LawSetting {
  const char* name;
  SamplingParams sampling;
};

inline const std::vector<LawSetting>& law_settings() {
  static const std::vector<LawSetting> settings = {
      {"Plain", {.temperature = 1.0F}},
      {"Hot", {.temperature = 2.0F}},
      {"TopK", {.temperature = 1.5F, .top_k = 3}},
      {"Penalty", {.temperature = 1.0F, .presence_penalty = 0.9F}}};
  return settings;
}

/// Chi-square of `draws` texts, seeds 0 on, above p = 1e-4.
void check_draft_law(const SamplingParams& sampling, int draws,
                     RoundDriver rounds = RoundDriver::kHost);

}  // namespace tessera::test
