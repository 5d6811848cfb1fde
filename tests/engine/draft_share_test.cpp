// SPDX-License-Identifier: Apache-2.0
// Drafts that share the selection of the first one: the same text, acceptance compared.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/engine/engine_harness.h"
#include "tests/engine/model_harness.h"

namespace tessera::test {
namespace {

constexpr int kMaxDraft = 5;
constexpr int kBudget = 64;  // tokens

std::unique_ptr<Engine> engine_with(int budget, bool share) {
  EngineOptions options;
  options.model_dir = "models/tiny";
  options.max_context = 1024;
  options.indexer_budget = budget;
  options.draft_share_selection = share;
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine) << (engine ? "" : engine.error().message());
  return engine ? std::move(*engine) : nullptr;
}

struct Totals {
  std::vector<std::vector<int32_t>> texts;
  std::vector<int> accepted = std::vector<int>(kMaxDraft);
  int proposed = 0;
};

/// Some texts, drafted side by side to different depths.
Totals run_all(Engine& engine, int prompt_tokens, bool drafts) {
  constexpr int kTexts = 12, kTokens = 100;
  std::vector<Generation> together;
  for (int index = 0; index < kTexts; ++index) {
    Request request =
        request_of(prompt_of(prompt_tokens + 7 * index, index), index % 3 == 0 ? 0.7F : 0.0F,
                   static_cast<uint64_t>(index), kTokens);
    request.draft = drafts ? kMaxDraft - index % 3 : 0;
    together.push_back(std::move(*engine.submit(request)));
  }
  Totals totals;
  for (Generation& generation : together) {
    const Output output = drain(generation);
    totals.texts.push_back(output.tokens);
    const DraftUsage& usage = output.last.usage.drafts;
    for (size_t place = 0; place < usage.accepted.size(); ++place)
      totals.accepted[place] += usage.accepted[place];
    totals.proposed += std::accumulate(usage.proposed.begin(), usage.proposed.end(), 0);
  }
  return totals;
}

TEST(DraftShare, AboveTheBudgetTheTextIsUnchangedAndAcceptanceNear) {
  const auto fresh = engine_with(kBudget, false);
  const auto shared = engine_with(kBudget, true);
  ASSERT_TRUE(fresh && shared);
  constexpr int kPrompt = 6 * kBudget;
  const Totals plain = run_all(*fresh, kPrompt, false);
  const Totals with_fresh = run_all(*fresh, kPrompt, true);
  const Totals with_shared = run_all(*shared, kPrompt, true);
  EXPECT_EQ(with_fresh.texts, plain.texts);
  EXPECT_EQ(with_shared.texts, plain.texts);
  const auto sum = [](const Totals& totals) {
    return std::accumulate(totals.accepted.begin(), totals.accepted.end(), 0);
  };
  const double rate_fresh = static_cast<double>(sum(with_fresh)) / with_fresh.proposed;
  const double rate_shared = static_cast<double>(sum(with_shared)) / with_shared.proposed;
  std::printf("accepted: fresh %.4f, shared %.4f\n", rate_fresh, rate_shared);
  EXPECT_GT(sum(with_fresh), 100);
  EXPECT_GT(rate_shared, 0.9 * rate_fresh);
}

/// Where every block is selected there is nothing to choose: the same drafts.
TEST(DraftShare, WithinTheBudgetTheDraftsAreTheSame) {
  constexpr int kWhole = 1024;
  const auto fresh = engine_with(kWhole, false);
  const auto shared = engine_with(kWhole, true);
  ASSERT_TRUE(fresh && shared);
  const Totals with_fresh = run_all(*fresh, 60, true);
  const Totals with_shared = run_all(*shared, 60, true);
  EXPECT_EQ(with_shared.texts, with_fresh.texts);
  EXPECT_EQ(with_shared.accepted, with_fresh.accepted);
  EXPECT_EQ(with_shared.proposed, with_fresh.proposed);
}

/// The lists themselves: what the first draft selected, and each block that a draft completes.
TEST(DraftShare, LaterDraftsGoOnFromTheFirstSelection) {
  const auto model = load_model("models/nano", OpsKind::kFast, CacheType::kF32, 16);
  ASSERT_NE(model, nullptr);
  const int draft_layer = model->config().num_layers();
  const int block = model->config().qsa.block;
  for (const size_t length : {40, 41, 42, 43}) {
    const std::vector<int32_t> ids = sample_ids(*model, length + 1, 3);
    const ScopedSequence sequence = open_sequence(*model);
    const std::span<const int32_t> prompt = std::span(ids).first(length);
    ASSERT_TRUE(model->prefill(sequence.id(), prompt));
    const DraftRows past{.sequence = sequence.id(), .next_ids = prompt.subspan(1)};
    ASSERT_TRUE(model->draft({&past, 1}, {.role = ops::Role::kPrefill, .cache_only = true}));
    RecordingTap tap;
    DraftRows row{.sequence = sequence.id(),
                  .position = static_cast<int64_t>(length) - 1,
                  .next_ids = std::span(ids).subspan(length, 1),
                  .first_source = static_cast<int>(length) - 1};
    ASSERT_TRUE(model->draft({&row, 1}, {.selection = DraftSelection::kKept, .tap = &tap}));
    for (int step = 1; step < kMaxDraft; ++step) {
      row.position += 1;
      row.first_source = 0;
      ASSERT_TRUE(model->draft(
          {&row, 1},
          {.source = DraftSource::kDraft, .selection = DraftSelection::kContinued, .tap = &tap}));
    }
    const auto& lists = tap.selected[draft_layer];
    ASSERT_EQ(lists.size(), static_cast<size_t>(kMaxDraft));
    std::vector<int32_t> expected = lists.front();
    EXPECT_EQ(expected.size(), 4U) << "the whole budget";
    for (size_t step = 1; step < lists.size(); ++step) {
      const auto seen = static_cast<int>(length + step);
      if (seen % block == 0) expected.push_back(seen / block - 1);
      EXPECT_EQ(lists[step], expected) << length << " step " << step;
    }
  }
}

}  // namespace
}  // namespace tessera::test
