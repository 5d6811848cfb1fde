// SPDX-License-Identifier: Apache-2.0
// Sampling settings and penalty counts of one request: what the sample op needs to know of it.
#pragma once

#include <tessera/error.h>
#include <tessera/request.h>
#include <tessera/sampling.h>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/sample.h"

namespace tessera {

struct Draw {
  int32_t token = 0;
  float logprob = 0.0F;             // of the raw softmax; 0 when none was asked for
  std::vector<TokenLogprob> top{};  // best first, ties to the lower id
};

struct SamplerOptions {
  int vocab_size = 0;     // logits of a row
  int valid_vocab = 0;    // ids from here on are unused rows and never drawn; at most vocab_size
  int top_logprobs = -1;  // as in Request
};

/// A draw is a pure function of the logits, the position, the seed and the tokens accepted so far;
/// asking for one changes no count, so drafted rows may be sampled and dropped.
class Sampler {
 public:
  /// `prompt` is all text before the first generated token. Errors: kInvalidArgument.
  static Result<Sampler> make(const SamplingParams& params, const SamplerOptions& options,
                              std::span<const int32_t> prompt);

  /// Parameters of a row whose token will have the index `position` in the sequence. Appends its
  /// edits to `edits`.
  ops::SampleRow row(int64_t position, std::vector<ops::LogitEdit>& edits) const;
  /// Outcome of that row. Errors: kNumerics for NaN or +Inf among the logits, and when no token is
  /// left (every logit is -Inf).
  static Result<Draw> draw(const ops::SampledToken& outcome, int64_t position);
  /// Counts a token that became part of the generated text.
  void accept(int32_t token);

  /// Whether draws depend on logits, position and seed alone: no bias, no penalty.
  bool is_plain() const { return !penalises_ && edits_.empty(); }

  const SamplingParams& params() const { return params_; }

 private:
  Sampler(const SamplingParams& params, const SamplerOptions& options,
          std::span<const int32_t> prompt);
  ops::LogitEdit& seen(int32_t token);

  SamplingParams params_;
  SamplerOptions options_;
  bool penalises_;
  /// Ascending tokens, biases of one token in their order; its last entry carries the occurrences.
  std::vector<ops::LogitEdit> edits_{};
};

}  // namespace tessera
