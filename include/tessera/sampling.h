// SPDX-License-Identifier: Apache-2.0
// How the next token is drawn from the logits of one row.
#pragma once

#include <tessera/error.h>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// Order of application: bias, penalties, temperature, top-k, top-p, min-p, draw.
/// The draw uses Philox(seed, position): the same seed gives the same token whatever else runs.
struct SamplingParams {
  float temperature = 1.0F;  // 0 is greedy: argmax, ties to the lowest id
  int top_k = 0;             // 0 is off
  float top_p = 1.0F;        // smallest set whose probability reaches top_p
  float min_p = 0.0F;        // drop tokens below min_p * p(best)
  float repetition_penalty =
      1.0F;  // divides positive logits of seen tokens, multiplies negative ones
  float presence_penalty = 0.0F;   // subtracted once from tokens already generated
  float frequency_penalty = 0.0F;  // subtracted per occurrence in the generated text
  std::vector<std::pair<int32_t, float>> logit_bias{};  // token id, added to its logit
  uint64_t seed = 0;

  bool greedy() const { return temperature == 0.0F; }

  /// Checks every range (finite, temperature in [0, 100], top_p in (0, 1], ...).
  Result<void> validate(int vocab_size) const;
};

/// Values of generation_config.json, used where a request leaves a setting open.
struct GenerationDefaults {
  SamplingParams sampling{};
  std::vector<int32_t> eos_token_ids{};  // generation stops on any of these
  int32_t bos_token_id = -1;             // -1: none
  int32_t pad_token_id = -1;
};

}  // namespace tessera
