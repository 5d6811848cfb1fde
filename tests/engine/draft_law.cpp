// SPDX-License-Identifier: Apache-2.0
// Draws texts with drafts and compares how often each comes with what the logits say.
#include "tests/engine/draft_law.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "tests/engine/engine_harness.h"
#include "tests/engine/model_harness.h"
#include "tests/support/chi_square.h"

namespace tessera::test {
namespace {

constexpr int kVocab = 4;   // ids that may be drawn
constexpr int kLength = 3;  // tokens whose joint law is tested
constexpr int kDraft = 2;
constexpr size_t kTogether = 16;
const std::vector<int32_t> kPrompt = {5, 17, 3};

using Text = std::vector<int32_t>;

/// Distribution of the token after `text` by definition: penalty, temperature, top-k.
std::vector<double> law_after(const std::vector<float>& logits, const Text& text,
                              const SamplingParams& sampling) {
  std::vector<double> scores(logits.begin(), logits.begin() + kVocab);
  for (int32_t id = 0; id < kVocab; ++id)
    if (std::ranges::find(text, id) != text.end())
      scores[static_cast<size_t>(id)] -= double{sampling.presence_penalty};
  std::vector<double> sorted = scores;
  std::ranges::sort(sorted, std::greater<>());
  const int kept = sampling.top_k > 0 ? std::min(sampling.top_k, kVocab) : kVocab;
  double sum = 0;
  for (double& score : scores) {
    score = score < sorted[static_cast<size_t>(kept) - 1]
                ? 0
                : std::exp((score - sorted[0]) / double{sampling.temperature});
    sum += score;
  }
  for (double& score : scores) score /= sum;
  return scores;
}

/// Probability of every text of kLength tokens, by plain launches of the model.
void add_law(LoadedModel& model, const Text& text, double probability,
             const SamplingParams& sampling, std::map<Text, double>& law) {
  if (text.size() == kLength) {
    law[text] = probability;
    return;
  }
  const ScopedSequence sequence = open_sequence(model);
  ASSERT_TRUE(model.prefill(sequence.id(), kPrompt));
  std::vector<float> logits(static_cast<size_t>(model.config().vocab_size));
  if (text.empty())
    model.logits(0, 1, logits.data());
  else
    for (const int32_t& id : text)
      logits = run_chunks(model, sequence.id(), {&id, 1}, 1, ops::Role::kDecode);
  const std::vector<double> next = law_after(logits, text, sampling);
  for (int32_t id = 0; id < kVocab; ++id) {
    Text longer = text;
    longer.push_back(id);
    add_law(model, longer, probability * next[static_cast<size_t>(id)], sampling, law);
  }
}

}  // namespace

void check_draft_law(const SamplingParams& sampling, int draws, RoundDriver rounds) {
  const auto model = load_model("models/nano", OpsKind::kFast);
  ASSERT_NE(model, nullptr);
  std::map<Text, double> law;
  ASSERT_NO_FATAL_FAILURE(add_law(*model, {}, 1, sampling, law));

  EngineOptions options;
  options.model_dir = "models/nano";
  options.valid_vocab = kVocab;
  options.rounds = rounds;
  options.max_sequences = static_cast<int>(kTogether);
  auto engine = Engine::load(options);
  ASSERT_TRUE(engine);
  std::map<Text, int> counts;
  int proposed = 0, accepted = 0;
  std::deque<Generation> running;
  const auto take_first = [&] {
    Output output = drain(running.front());
    running.pop_front();
    output.tokens.resize(kLength);
    ++counts[output.tokens];
    const DraftUsage& drafts = output.last.usage.drafts;
    for (const int count : drafts.proposed) proposed += count;
    for (const int count : drafts.accepted) accepted += count;
  };
  for (int draw = 0; draw < draws; ++draw) {
    if (running.size() == kTogether) take_first();
    Request request = request_of(kPrompt, 0, 0, kLength + 1);
    request.sampling = sampling;
    request.sampling.seed = static_cast<uint64_t>(draw);
    request.draft = kDraft;
    running.push_back(std::move(*(*engine)->submit(request)));
  }
  while (!running.empty()) take_first();
  // Both outcomes of a draft are part of what is tested.
  EXPECT_GT(accepted, draws / 10);
  EXPECT_GT(proposed - accepted, draws / 10);

  ChiSquare test;
  for (const auto& [text, probability] : law) test.add(probability * draws, counts[text]);
  test.judge();
}

}  // namespace tessera::test
