// SPDX-License-Identifier: Apache-2.0
// Draws the next token of one request from the logits of a row.
#pragma once

#include <tessera/error.h>
#include <tessera/request.h>
#include <tessera/sampling.h>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

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

/// Settings and penalty counts of one request. A draw is a pure function of the logits, the
/// position, the seed and the tokens accepted so far; `sample` changes no count, so drafted rows
/// may be sampled and dropped.
class Sampler {
 public:
  /// `prompt` is all text before the first generated token. Errors: kInvalidArgument.
  static Result<Sampler> make(const SamplingParams& params, const SamplerOptions& options,
                              std::span<const int32_t> prompt);

  /// Inverse-CDF draw over the kept tokens in ascending order of id. `position` is the index the
  /// token will have in the sequence. Errors: kNumerics for NaN or +Inf among the logits, and when
  /// no token is left (every logit is -Inf).
  Result<Draw> sample(std::span<const float> logits, int64_t position);
  /// Counts a token that became part of the generated text.
  void accept(int32_t token);

  const SamplingParams& params() const { return params_; }

 private:
  /// A token that may still be drawn; `weight` is its probability times a common factor.
  struct Candidate {
    int32_t token = 0;
    float logit = 0.0F;
    double weight = 0.0;
  };

  Sampler(const SamplingParams& params, const SamplerOptions& options)
      : params_(params), options_(options) {}

  Result<int32_t> best_token(std::span<const float> logits, int64_t position) const;
  void adjust();
  void select_top_k(size_t count);
  void keep_all();
  void weigh(float best);
  void apply_top_p();
  void apply_min_p();
  int32_t draw(double uniform) const;
  void add_logprobs(std::span<const float> logits, Draw& draw);

  SamplingParams params_;
  SamplerOptions options_;
  std::unordered_map<int32_t, int32_t> generated_{};  // occurrences of tokens seen; 0: prompt only
  std::vector<float> adjusted_{};                     // logits after bias and penalties
  std::vector<Candidate> candidates_{};               // ascending ids
  std::vector<Candidate> ranked_{};                   // scratch of top-p
};

}  // namespace tessera
