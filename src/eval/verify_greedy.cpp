// SPDX-License-Identifier: Apache-2.0
// Walks one sequence token by token on a loaded model.
#include "eval/verify_greedy.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/logit_math.h"
#include "runtime/scoped_sequence.h"

namespace tessera {
namespace {

tl::unexpected<Error> not_finite(std::string what, size_t position, std::string found) {
  return fail({.code = Errc::kNumerics,
               .what = std::move(what),
               .where = "position " + std::to_string(position),
               .expected = "finite numbers",
               .found = std::move(found)});
}

/// Drives greedy decoding: `choose(step, best)` returns the token to absorb next, or -1 to end.
template <class Choose>
Result<void> decode_greedy(LoadedModel& model, std::span<const int32_t> prompt, Choose&& choose) {
  Result<ScopedSequence> sequence = ScopedSequence::create(model.store());
  if (!sequence) return fail(sequence.error());
  if (auto status = model.prefill(sequence->id(), prompt); !status) return status;
  std::vector<float> logits(static_cast<size_t>(model.config().vocab_size));
  constexpr int32_t kFirstRow = 0;
  for (int step = 0;; ++step) {
    model.logits(0, 1, logits.data());
    // One NaN anywhere: an argmax over the rest would mean nothing.
    const auto bad = std::find_if_not(logits.begin(), logits.end(),
                                      [](float logit) { return std::isfinite(logit); });
    if (bad != logits.end())
      return not_finite("logit is not finite", prompt.size() + static_cast<size_t>(step),
                        std::to_string(*bad));
    const int32_t token = choose(step, argmax(logits));
    if (token < 0) return {};
    const SequenceRows row{.sequence = sequence->id(), .ids = {&token, 1}};
    auto status = model.run({&row, 1}, ops::Role::kDecode, {&kFirstRow, 1});
    if (!status) return status;
  }
}

}  // namespace

Result<GreedyComparison> compare_greedy(LoadedModel& model, std::span<const int32_t> prompt,
                                        std::span<const int32_t> expected,
                                        std::span<const double> margin, double margin_bound) {
  GreedyComparison result;
  const auto count = static_cast<int>(expected.size());
  auto status = decode_greedy(model, prompt, [&](int step, int32_t best) {
    if (step >= count) return int32_t{-1};
    const auto at = static_cast<size_t>(step);
    ++result.steps;
    if (best != expected[at]) {
      if (result.first_mismatch < 0) result.first_mismatch = step;
      const bool tie = at < margin.size() && margin[at] < margin_bound;
      ++(tie ? result.ties : result.mismatches);
    }
    return step + 1 < count ? expected[at] : int32_t{-1};
  });
  if (!status) return fail(status.error());
  return result;
}

Result<std::vector<int32_t>> greedy_continuation(LoadedModel& model,
                                                 std::span<const int32_t> prompt, int max_tokens) {
  std::vector<int32_t> output;
  const std::vector<int32_t>& stops = model.defaults().eos_token_ids;
  auto status = decode_greedy(model, prompt, [&](int step, int32_t best) {
    output.push_back(best);
    const bool stop = std::find(stops.begin(), stops.end(), best) != stops.end();
    return stop || step + 1 >= max_tokens ? int32_t{-1} : best;
  });
  if (!status) return fail(status.error());
  return output;
}

Result<double> mean_nll(LoadedModel& model, std::span<const int32_t> ids) {
  if (ids.size() < 2)
    return fail({.code = Errc::kInvalidArgument,
                 .what = "text too short to score",
                 .expected = "at least 2 tokens",
                 .found = std::to_string(ids.size())});
  Result<ScopedSequence> sequence = ScopedSequence::create(model.store());
  if (!sequence) return fail(sequence.error());
  constexpr size_t kRows = 64;  // logits kept at once
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  std::vector<float> logits(kRows * vocab);
  std::vector<int32_t> rows;
  double sum = 0;
  for (size_t begin = 0; begin < ids.size(); begin += kRows) {
    const std::span<const int32_t> chunk = ids.subspan(begin, std::min(kRows, ids.size() - begin));
    rows.clear();
    for (size_t row = 0; row < chunk.size(); ++row) rows.push_back(static_cast<int32_t>(row));
    const SequenceRows work{.sequence = sequence->id(), .ids = chunk};
    if (auto status = model.run({&work, 1}, ops::Role::kPrefill, rows); !status)
      return fail(status.error());
    model.logits(0, static_cast<int>(chunk.size()), logits.data());
    for (size_t row = 0; row < chunk.size() && begin + row + 1 < ids.size(); ++row) {
      const double logprob =
          log_probability({logits.data() + row * vocab, vocab}, ids[begin + row + 1]);
      if (!std::isfinite(logprob))
        return not_finite("log-probability is not finite", begin + row + 1,
                          std::to_string(logprob));
      sum -= logprob;
    }
  }
  return sum / static_cast<double>(ids.size() - 1);
}

}  // namespace tessera
