// SPDX-License-Identifier: Apache-2.0
// Draws the next token of every row from its logits: edits, temperature, top-k, nucleus, min-p,
// inverse CDF over the kept tokens in ascending order of id. Total order of tokens everywhere:
// higher logit first, then the lower id.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ops/cost.h"

namespace tessera::ops {

/// Most tokens that a row may list with their log-probabilities.
inline constexpr int kMaxTopTokens = 20;

/// Change of one logit: bias, then, for a token that was seen, the row's penalties.
struct LogitEdit {
  int32_t token = 0;  // ids outside the valid vocabulary are ignored
  float bias = 0.0F;
  int32_t occurrences = -1;  // in the generated text; 0: seen in the prompt only; -1: not seen
};

/// How the token of one row is drawn. Settings mean what they mean in SamplingParams.
struct SampleRow {
  float temperature = 1.0F;  // 0: the best token
  int top_k = 0;             // 0: off
  float top_p = 1.0F;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  int valid_vocab = 0;  // ids from here on are never looked at
  uint64_t seed = 0;
  int64_t position = 0;   // the draw is philox_uniform(seed, position, kSample)
  int top_logprobs = -1;  // -1: no log-probability; else also that many best tokens
  int edits_begin = 0;    // in SampleArgs::edits
  int num_edits = 0;
};

enum class SampleStatus : int32_t {
  kDrawn,
  kBadLogit,  // NaN or +Inf, before or after the edits: `token` is the first such id
  kNoToken,   // every logit is -Inf
};

struct RankedToken {
  int32_t token = 0;
  float logprob = 0.0F;
};

/// Log-probabilities are those of the raw softmax over the valid vocabulary.
struct SampledToken {
  SampleStatus status = SampleStatus::kDrawn;
  int32_t token = 0;
  float logprob = 0.0F;  // 0 when none was asked for
  float bad_logit = 0.0F;
  int num_top = 0;
  std::array<RankedToken, kMaxTopTokens> top{};  // best first
};

struct SampleArgs {
  const float* logits = nullptr;  // [rows, vocab]
  int vocab = 0;
  // The rest is host memory on every backend.
  std::span<const SampleRow> rows{};
  std::span<const LogitEdit> edits{};  // of a row: ascending tokens, those of one token in order
  std::span<SampledToken> results{};   // [rows], complete on return
};

Cost cost(const SampleArgs& args);

}  // namespace tessera::ops
