// SPDX-License-Identifier: Apache-2.0
// Penalties, temperature, top-k, nucleus and the draw, over one total order of tokens.
#include "runtime/sampler.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "core/philox.h"
#include "runtime/logit_math.h"

namespace tessera {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kSortedRest = 64;

/// Total order of tokens: higher logit first, then the lower id.
constexpr auto kBetter = [](const auto& left, const auto& right) {
  return left.logit > right.logit || (left.logit == right.logit && left.token < right.token);
};

tl::unexpected<Error> bad_logits(int64_t position, std::string what, std::string found) {
  return fail({.code = Errc::kNumerics,
               .what = std::move(what),
               .where = "logits of position " + std::to_string(position),
               .expected = "finite numbers or -Inf",
               .found = std::move(found)});
}

}  // namespace

Result<Sampler> Sampler::make(const SamplingParams& params, const SamplerOptions& options,
                              std::span<const int32_t> prompt) {
  if (Result<void> valid = params.validate(options.vocab_size); !valid)
    return fail(std::move(valid.error()));
  if (options.valid_vocab <= 0 || options.valid_vocab > options.vocab_size)
    return fail({.code = Errc::kInvalidArgument,
                 .what = "vocabulary of the tokenizer does not fit the model",
                 .expected = "1 to " + std::to_string(options.vocab_size) + " ids",
                 .found = std::to_string(options.valid_vocab)});
  Sampler sampler(params, options);
  if (params.repetition_penalty != 1.0F)
    for (const int32_t token : prompt) sampler.generated_.emplace(token, 0);
  return sampler;
}

void Sampler::accept(int32_t token) { ++generated_[token]; }

Result<Draw> Sampler::sample(std::span<const float> logits, int64_t position) {
  assert(logits.size() == static_cast<size_t>(options_.vocab_size));
  const std::span<const float> valid = logits.first(static_cast<size_t>(options_.valid_vocab));
  Result<int32_t> best = best_token(valid, position);
  if (!best) return fail(std::move(best.error()));
  adjusted_.assign(valid.begin(), valid.end());
  adjust();
  best = best_token(adjusted_, position);
  if (!best) return fail(std::move(best.error()));
  Draw result;
  result.token = *best;
  if (!params_.greedy()) {
    const auto top_k = static_cast<size_t>(params_.top_k);
    if (top_k > 0 && top_k < adjusted_.size())
      select_top_k(top_k);
    else
      keep_all();
    weigh(adjusted_[static_cast<size_t>(*best)]);
    apply_top_p();
    apply_min_p();
    const auto counter = static_cast<uint64_t>(position);
    result.token = draw(philox_uniform(params_.seed, counter, DrawPurpose::kSample));
  }
  if (options_.top_logprobs >= 0) add_logprobs(valid, result);
  return result;
}

Result<int32_t> Sampler::best_token(std::span<const float> logits, int64_t position) const {
  float best = kNegativeInfinity;
  size_t token = logits.size();
  for (size_t index = 0; index < logits.size(); ++index) {
    const float logit = logits[index];
    // NaN fails every comparison, so it has to be asked for.
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity())
      return bad_logits(position, "numerical failure",
                        std::to_string(logit) + " for token " + std::to_string(index));
    if (logit > best) {
      best = logit;
      token = index;
    }
  }
  if (token == logits.size())
    return bad_logits(position, "no token can be drawn", "-Inf for every token");
  return static_cast<int32_t>(token);
}

void Sampler::adjust() {
  const auto slot = [this](int32_t token) -> float* {
    const auto index = static_cast<size_t>(token);
    return index < adjusted_.size() ? &adjusted_[index] : nullptr;
  };
  for (const auto& [token, bias] : params_.logit_bias)
    if (float* logit = slot(token)) *logit += bias;
  for (const auto& [token, count] : generated_) {
    float* logit = slot(token);
    if (logit == nullptr) continue;
    if (*logit > 0.0F)
      *logit /= params_.repetition_penalty;
    else
      *logit *= params_.repetition_penalty;
    *logit -= params_.frequency_penalty * static_cast<float>(count);
    if (count > 0) *logit -= params_.presence_penalty;
  }
}

/// Keeps exactly the best `count` of the total order: a heap whose root is the worst one kept.
void Sampler::select_top_k(size_t count) {
  candidates_.clear();
  for (size_t index = 0; index < adjusted_.size(); ++index) {
    const Candidate candidate{static_cast<int32_t>(index), adjusted_[index]};
    if (candidates_.size() == count) {
      // Ids ascend, so an equal logit never displaces one that is kept.
      if (candidate.logit <= candidates_.front().logit) continue;
      std::pop_heap(candidates_.begin(), candidates_.end(), kBetter);
      candidates_.pop_back();
    }
    candidates_.push_back(candidate);
    std::push_heap(candidates_.begin(), candidates_.end(), kBetter);
  }
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& left, const Candidate& right) { return left.token < right.token; });
}

void Sampler::keep_all() {
  candidates_.resize(adjusted_.size());
  for (size_t index = 0; index < adjusted_.size(); ++index)
    candidates_[index] = {static_cast<int32_t>(index), adjusted_[index]};
}

/// Weights relative to the best token, so that no temperature overflows: the best one has 1.
void Sampler::weigh(float best) {
  const double temperature = params_.temperature;
  for (Candidate& candidate : candidates_)
    candidate.weight =
        std::exp((static_cast<double>(candidate.logit) - static_cast<double>(best)) / temperature);
}

/// Finds the worst token of the nucleus by halving the range that holds it; only a short rest is
/// sorted. The candidates themselves stay in order of id.
void Sampler::apply_top_p() {
  if (params_.top_p >= 1.0F) return;
  const double top_p = params_.top_p;
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  // All tokens below this weight together are less than what the nucleus leaves out.
  const double negligible = (1.0 - top_p) * total / static_cast<double>(candidates_.size());
  ranked_.clear();
  for (const Candidate& candidate : candidates_)
    if (candidate.weight >= negligible) ranked_.push_back(candidate);
  const auto mass_of = [this](size_t first, size_t last) {
    double mass = 0.0;
    for (size_t rank = first; rank < last; ++rank) mass += ranked_[rank].weight;
    return mass;
  };
  const auto at = [this](size_t rank) {
    return ranked_.begin() + static_cast<std::ptrdiff_t>(rank);
  };
  double missing = top_p * total;
  size_t first = 0;
  size_t last = ranked_.size();
  while (last - first > kSortedRest) {
    const size_t middle = first + (last - first) / 2;
    std::nth_element(at(first), at(middle), at(last), kBetter);
    const double mass = mass_of(first, middle);
    if (mass >= missing) {
      last = middle;
    } else {
      missing -= mass;
      first = middle;
    }
  }
  std::sort(at(first), at(last), kBetter);
  while (first + 1 < last && ranked_[first].weight < missing) missing -= ranked_[first++].weight;
  const Candidate worst = ranked_[first];
  std::erase_if(candidates_, [&worst](const Candidate& one) { return kBetter(worst, one); });
}

/// The best token weighs 1, so the bound is min_p itself.
void Sampler::apply_min_p() {
  if (params_.min_p <= 0.0F) return;
  const double least = params_.min_p;
  std::erase_if(candidates_, [least](const Candidate& one) { return one.weight < least; });
}

int32_t Sampler::draw(double uniform) const {
  double total = 0.0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const double target = uniform * total;
  double mass = 0.0;
  int32_t last = candidates_.front().token;
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight == 0.0) continue;
    mass += candidate.weight;
    last = candidate.token;
    if (mass > target) break;
  }
  return last;
}

void Sampler::add_logprobs(std::span<const float> logits, Draw& result) {
  const double log_total = log_sum_exp(logits);
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_total);
  };
  result.logprob = logprob(logits[static_cast<size_t>(result.token)]);
  const auto count = std::min(static_cast<size_t>(options_.top_logprobs), logits.size());
  if (count == 0) return;
  adjusted_.assign(logits.begin(), logits.end());
  select_top_k(count);
  std::sort(candidates_.begin(), candidates_.end(), kBetter);
  for (const Candidate& candidate : candidates_)
    result.top.push_back({candidate.token, logprob(candidate.logit)});
}

}  // namespace tessera
