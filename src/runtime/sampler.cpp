// SPDX-License-Identifier: Apache-2.0
// Keeps the edits of a request sorted, and turns outcomes into results.
#include "runtime/sampler.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tessera {
namespace {

tl::unexpected<Error> bad_logits(int64_t position, std::string what, std::string found) {
  return fail({.code = Errc::kNumerics,
               .what = std::move(what),
               .where = "logits of position " + std::to_string(position),
               .expected = "finite numbers or -Inf",
               .found = std::move(found)});
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, const SamplerOptions& options,
                 std::span<const int32_t> prompt)
    : params_(params),
      options_(options),
      penalises_(params.repetition_penalty != 1.0F || params.presence_penalty != 0.0F ||
                 params.frequency_penalty != 0.0F) {
  for (const auto& [token, bias] : params_.logit_bias)
    edits_.push_back({.token = token, .bias = bias});
  if (params.repetition_penalty != 1.0F) {
    std::vector<int32_t> tokens(prompt.begin(), prompt.end());
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (const int32_t token : tokens) edits_.push_back({.token = token, .occurrences = 0});
  }
  std::stable_sort(edits_.begin(), edits_.end(),
                   [](const auto& left, const auto& right) { return left.token < right.token; });
}

Result<Sampler> Sampler::make(const SamplingParams& params, const SamplerOptions& options,
                              std::span<const int32_t> prompt) {
  if (Result<void> valid = params.validate(options.vocab_size); !valid)
    return fail(std::move(valid.error()));
  if (options.valid_vocab <= 0 || options.valid_vocab > options.vocab_size)
    return fail({.code = Errc::kInvalidArgument,
                 .what = "vocabulary of the tokenizer does not fit the model",
                 .expected = "1 to " + std::to_string(options.vocab_size) + " ids",
                 .found = std::to_string(options.valid_vocab)});
  return Sampler(params, options, prompt);
}

/// The entry that carries the occurrences of a token, made if there is none.
ops::LogitEdit& Sampler::seen(int32_t token) {
  const auto after = std::upper_bound(
      edits_.begin(), edits_.end(), token,
      [](int32_t wanted, const ops::LogitEdit& edit) { return wanted < edit.token; });
  if (after != edits_.begin() && std::prev(after)->token == token) return *std::prev(after);
  return *edits_.insert(after, {.token = token});
}

void Sampler::accept(int32_t token) {
  if (!penalises_) return;
  ops::LogitEdit& edit = seen(token);
  edit.occurrences = std::max(edit.occurrences, 0) + 1;
}

ops::SampleRow Sampler::row(int64_t position, std::vector<ops::LogitEdit>& edits) const {
  const ops::SampleRow row{.temperature = params_.temperature,
                           .top_k = params_.top_k,
                           .top_p = params_.top_p,
                           .min_p = params_.min_p,
                           .repetition_penalty = params_.repetition_penalty,
                           .presence_penalty = params_.presence_penalty,
                           .frequency_penalty = params_.frequency_penalty,
                           .valid_vocab = options_.valid_vocab,
                           .seed = params_.seed,
                           .position = position,
                           .top_logprobs = options_.top_logprobs,
                           .edits_begin = static_cast<int>(edits.size()),
                           .num_edits = static_cast<int>(edits_.size())};
  edits.insert(edits.end(), edits_.begin(), edits_.end());
  return row;
}

Result<Draw> Sampler::draw(const ops::SampledToken& outcome, int64_t position) {
  switch (outcome.status) {
    case ops::SampleStatus::kDrawn: break;
    case ops::SampleStatus::kBadLogit:
      return bad_logits(
          position, "numerical failure",
          std::to_string(outcome.bad_logit) + " for token " + std::to_string(outcome.token));
    case ops::SampleStatus::kNoToken:
      return bad_logits(position, "no token can be drawn", "-Inf for every token");
  }
  Draw draw{.token = outcome.token, .logprob = outcome.logprob};
  for (int rank = 0; rank < outcome.num_top; ++rank) {
    const ops::RankedToken& one = outcome.top[static_cast<size_t>(rank)];
    draw.top.push_back({one.token, one.logprob});
  }
  return draw;
}

}  // namespace tessera
