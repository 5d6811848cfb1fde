// SPDX-License-Identifier: Apache-2.0
// Penalties, temperature, top-k, nucleus and the draw, over one total order of tokens.
#include "cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/logit_math.h"
#include "core/parallel.h"
#include "core/philox.h"

namespace tessera::cpu {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kSortedRest = 64;

/// Total order of tokens: higher logit first, then the lower id.
constexpr auto kBetter = [](const auto& left, const auto& right) {
  return left.logit > right.logit || (left.logit == right.logit && left.token < right.token);
};

/// One row at a time; keeps its buffers.
class RowSampler {
 public:
  ops::SampledToken sample(const ops::SampleRow& row, std::span<const float> logits,
                           std::span<const ops::LogitEdit> edits);

 private:
  /// A token that may still be drawn; `weight` is its probability times a common factor.
  struct Candidate {
    int32_t token = 0;
    float logit = 0.0F;
    double weight = 0.0;
  };

  static ops::SampledToken best_token(std::span<const float> logits);
  void adjust(const ops::SampleRow& row, std::span<const ops::LogitEdit> edits);
  void select_top_k(size_t count);
  void keep_all();
  void weigh(float best, double temperature);
  void apply_top_p(double top_p);
  void apply_min_p(double min_p);
  int32_t draw(double uniform) const;
  void add_logprobs(std::span<const float> logits, int num_top, ops::SampledToken& result);

  std::vector<float> adjusted_{};        // logits after bias and penalties
  std::vector<Candidate> candidates_{};  // ascending ids
  std::vector<Candidate> ranked_{};      // scratch of top-p
};

ops::SampledToken RowSampler::sample(const ops::SampleRow& row, std::span<const float> logits,
                                     std::span<const ops::LogitEdit> edits) {
  ops::SampledToken result = best_token(logits);
  if (result.status != ops::SampleStatus::kDrawn) return result;
  adjusted_.assign(logits.begin(), logits.end());
  adjust(row, edits);
  result = best_token(adjusted_);
  if (result.status != ops::SampleStatus::kDrawn) return result;
  if (row.temperature != 0.0F) {
    const auto top_k = static_cast<size_t>(row.top_k);
    if (top_k > 0 && top_k < adjusted_.size())
      select_top_k(top_k);
    else
      keep_all();
    weigh(adjusted_[static_cast<size_t>(result.token)], double{row.temperature});
    if (row.top_p < 1.0F) apply_top_p(double{row.top_p});
    if (row.min_p > 0.0F) apply_min_p(double{row.min_p});
    const auto counter = static_cast<uint64_t>(row.position);
    result.token = draw(philox_uniform(row.seed, counter, DrawPurpose::kSample));
  }
  if (row.top_logprobs >= 0) add_logprobs(logits, row.top_logprobs, result);
  return result;
}

ops::SampledToken RowSampler::best_token(std::span<const float> logits) {
  float best = kNegativeInfinity;
  size_t token = logits.size();
  for (size_t index = 0; index < logits.size(); ++index) {
    const float logit = logits[index];
    // NaN fails every comparison, so it has to be asked for.
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity())
      return {.status = ops::SampleStatus::kBadLogit,
              .token = static_cast<int32_t>(index),
              .bad_logit = logit};
    if (logit > best) {
      best = logit;
      token = index;
    }
  }
  if (token == logits.size()) return {.status = ops::SampleStatus::kNoToken};
  return {.token = static_cast<int32_t>(token)};
}

void RowSampler::adjust(const ops::SampleRow& row, std::span<const ops::LogitEdit> edits) {
  for (const ops::LogitEdit& edit : edits) {
    const auto index = static_cast<size_t>(edit.token);
    if (index >= adjusted_.size()) continue;
    float& logit = adjusted_[index];
    logit += edit.bias;
    if (edit.occurrences < 0) continue;
    if (logit > 0.0F)
      logit /= row.repetition_penalty;
    else
      logit *= row.repetition_penalty;
    logit -= row.frequency_penalty * static_cast<float>(edit.occurrences);
    if (edit.occurrences > 0) logit -= row.presence_penalty;
  }
}

/// Keeps exactly the best `count` of the total order: a heap whose root is the worst one kept.
void RowSampler::select_top_k(size_t count) {
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

void RowSampler::keep_all() {
  candidates_.resize(adjusted_.size());
  for (size_t index = 0; index < adjusted_.size(); ++index)
    candidates_[index] = {static_cast<int32_t>(index), adjusted_[index]};
}

/// Weights relative to the best token, so that no temperature overflows: the best one has 1.
void RowSampler::weigh(float best, double temperature) {
  for (Candidate& candidate : candidates_)
    candidate.weight =
        std::exp((static_cast<double>(candidate.logit) - static_cast<double>(best)) / temperature);
}

/// Finds the worst token of the nucleus by halving the range that holds it; only a short rest is
/// sorted. The candidates themselves stay in order of id.
void RowSampler::apply_top_p(double top_p) {
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
void RowSampler::apply_min_p(double min_p) {
  std::erase_if(candidates_, [min_p](const Candidate& one) { return one.weight < min_p; });
}

int32_t RowSampler::draw(double uniform) const {
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

void RowSampler::add_logprobs(std::span<const float> logits, int num_top,
                              ops::SampledToken& result) {
  const double log_total = log_sum_exp(logits);
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_total);
  };
  result.logprob = logprob(logits[static_cast<size_t>(result.token)]);
  const auto wanted = static_cast<size_t>(std::min(num_top, ops::kMaxTopTokens));
  const size_t count = std::min(wanted, logits.size());
  if (count == 0) return;
  adjusted_.assign(logits.begin(), logits.end());
  select_top_k(count);
  std::sort(candidates_.begin(), candidates_.end(), kBetter);
  for (const Candidate& candidate : candidates_)
    result.top[static_cast<size_t>(result.num_top++)] = {candidate.token, logprob(candidate.logit)};
}

}  // namespace

void sample(const ops::SampleArgs& args) {
  const auto rows = static_cast<int64_t>(args.rows.size());
  parallel_for(rows, 1, [&](int64_t begin, int64_t end, int) {
    static thread_local RowSampler sampler;  // keeps its buffers from call to call
    for (int64_t index = begin; index < end; ++index) {
      const ops::SampleRow& row = args.rows[static_cast<size_t>(index)];
      const std::span<const float> logits(args.logits + index * args.vocab,
                                          static_cast<size_t>(row.valid_vocab));
      const auto edits = args.edits.subspan(static_cast<size_t>(row.edits_begin),
                                            static_cast<size_t>(row.num_edits));
      args.results[static_cast<size_t>(index)] = sampler.sample(row, logits, edits);
    }
  });
}

}  // namespace tessera::cpu
