// SPDX-License-Identifier: Apache-2.0
// Rounds with drafts on a device: recorded steps against direct launches, batches against
// sequences alone, launch by launch and bit by bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/model_harness.h"
#include "tests/engine/setups.h"

namespace tessera::test {
namespace {

constexpr int kMaxDraft = 5;
constexpr size_t kPrompt = 90;
constexpr int kRounds = 40;
constexpr int kSharedBudget = 64;  // tokens

/// One sequence that drafts to a fixed depth and accepts what a script says.
struct Drafting {
  ScopedSequence sequence;
  std::vector<int32_t> ids;  // its text
  int depth = 0;
  size_t position = 0;
  std::vector<float> seen{};  // logits of accepted rows and of drafts

  int accepted(int round) const { return 1 + (round * 7 + depth) % (depth + 1); }
};

class DraftDeviceTest : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_skipped(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
  }

  /// Shared selections with a small budget, so that they are not the whole context.
  static std::unique_ptr<LoadedModel> load(bool record, bool overlap, bool share) {
    EngineOptions options = options_of(GetParam(), 1024);
    options.draft_share_selection = share;
    if (share) options.indexer_budget = kSharedBudget;
    options.record_steps = record;
    options.overlap_kernels = overlap;
    auto model = LoadedModel::load(options);
    EXPECT_TRUE(model) << (model ? "" : model.error().message());
    return model ? std::move(*model) : nullptr;
  }

  static Drafting open(LoadedModel& model, int depth) {
    Drafting drafting{.sequence = open_sequence(model),
                      .ids = sample_ids(model, kPrompt + kRounds * (kMaxDraft + 2),
                                        static_cast<uint64_t>(depth) + 21),
                      .depth = depth,
                      .position = kPrompt};
    const std::span<const int32_t> ids(drafting.ids);
    const SequenceRows prompt{.sequence = drafting.sequence.id(), .ids = ids.first(kPrompt)};
    EXPECT_TRUE(model.run({&prompt, 1}, ops::Role::kPrefill, {}));
    const DraftRows rows{.sequence = drafting.sequence.id(), .next_ids = ids.subspan(1, kPrompt)};
    EXPECT_TRUE(model.draft({&rows, 1}, {.role = ops::Role::kPrefill, .cache_only = true}));
    return drafting;
  }

  static void keep_logits(const LoadedModel& model, const std::vector<float>& logits, size_t row,
                          Drafting& drafting) {
    const auto vocab = static_cast<ptrdiff_t>(model.config().vocab_size);
    const auto from = logits.begin() + static_cast<ptrdiff_t>(row) * vocab;
    drafting.seen.insert(drafting.seen.end(), from, from + vocab);
  }

  /// Verify, accept, catch up, the live row, and `depth` - 1 more of the chain, all together.
  static void run_round(LoadedModel& model, std::span<Drafting> all, int round) {
    std::vector<SequenceRows> work;
    std::vector<int32_t> logit_rows;
    for (const Drafting& each : all) {
      const auto rows = static_cast<size_t>(each.depth) + 1;
      work.push_back({.sequence = each.sequence.id(),
                      .ids = std::span(each.ids).subspan(each.position, rows)});
      for (size_t row = 0; row < rows; ++row)
        logit_rows.push_back(static_cast<int32_t>(logit_rows.size()));
    }
    ASSERT_TRUE(model.verify(work, logit_rows));
    const auto vocab = static_cast<size_t>(model.config().vocab_size);
    std::vector<float> logits(logit_rows.size() * vocab);
    model.logits(0, static_cast<int>(logit_rows.size()), logits.data());

    std::vector<DraftRows> caches, live;
    int first_row = 0;
    for (size_t at = 0; at < all.size(); ++at) {
      Drafting& each = all[at];
      const int kept = each.accepted(round);
      for (int row = 0; row < kept; ++row)
        keep_logits(model, logits, static_cast<size_t>(first_row + row), each);
      model.accept(work[at], first_row, kept);
      const std::span<const int32_t> next = std::span(each.ids).subspan(each.position + 1);
      const auto others = static_cast<size_t>(kept) - 1;
      if (others > 0)
        caches.push_back({.sequence = each.sequence.id(),
                          .position = static_cast<int64_t>(each.position),
                          .next_ids = next.first(others),
                          .first_source = first_row});
      each.position += static_cast<size_t>(kept);
      if (each.depth > 0)
        live.push_back({.sequence = each.sequence.id(),
                        .position = static_cast<int64_t>(each.position) - 1,
                        .next_ids = next.subspan(others, 1),
                        .first_source = first_row + kept - 1});
      first_row += each.depth + 1;
    }
    if (!caches.empty()) {
      ASSERT_TRUE(model.draft(caches, {.cache_only = true}));
    }
    ASSERT_NO_FATAL_FAILURE(run_chain(model, all, std::move(live)));
  }

  /// The text itself is what the chain drafts, so that its ids do not depend on logits.
  static void run_chain(LoadedModel& model, std::span<Drafting> all, std::vector<DraftRows> rows) {
    std::vector<Drafting*> chains;
    for (Drafting& each : all)
      if (each.depth > 0) chains.push_back(&each);
    const bool share = model.options().draft_share_selection;
    DraftRun how{.selection = share ? DraftSelection::kKept : DraftSelection::kFresh};
    for (int drafted = 1; !rows.empty(); ++drafted) {
      ASSERT_TRUE(model.draft(rows, how));
      std::vector<float> logits(rows.size() * static_cast<size_t>(model.config().vocab_size));
      model.draft_logits(0, static_cast<int>(rows.size()), logits.data());
      std::vector<DraftRows> next;
      std::vector<Drafting*> longer;
      for (size_t at = 0; at < chains.size(); ++at) {
        Drafting& each = *chains[at];
        keep_logits(model, logits, at, each);
        if (drafted == each.depth) continue;
        const size_t position = each.position - 1 + static_cast<size_t>(drafted);
        next.push_back({.sequence = each.sequence.id(),
                        .position = static_cast<int64_t>(position),
                        .next_ids = std::span<const int32_t>(each.ids).subspan(position + 1, 1),
                        .first_source = static_cast<int>(at)});
        longer.push_back(&each);
      }
      rows = std::move(next);
      chains = std::move(longer);
      how.source = DraftSource::kDraft;
      if (share) how.selection = DraftSelection::kContinued;
    }
  }

  static std::vector<float> run_alone(LoadedModel& model, int depth) {
    Drafting drafting = open(model, depth);
    for (int round = 0; round < kRounds; ++round) run_round(model, {&drafting, 1}, round);
    return drafting.seen;
  }
};

TEST_P(DraftDeviceTest, RecordedRoundsEqualDirectLaunches) {
  for (const bool share : {false, true}) {
    std::vector<std::vector<float>> want;
    for (const bool record : {false, true})
      for (const bool overlap : {false, true}) {
        const auto model = load(record, overlap, share);
        ASSERT_NE(model, nullptr);
        for (int depth = 0; depth <= kMaxDraft; ++depth) {
          const std::vector<float> got = run_alone(*model, depth);
          if (want.size() <= static_cast<size_t>(depth)) want.push_back(got);
          EXPECT_EQ(got, want[static_cast<size_t>(depth)])
              << "depth " << depth << ", shared " << share << ", recorded " << record
              << ", overlapped " << overlap;
        }
        if (record) {
          EXPECT_GT(model->ops().repeated_kernels(), 0);
        }
      }
  }
}

TEST_P(DraftDeviceTest, RowsOfABatchHaveTheBitsOfASequenceAlone) {
  for (const bool share : {false, true}) {
    const auto model = load(true, true, share);
    ASSERT_NE(model, nullptr);
    constexpr int kDepths[] = {3, 0, 5, 1, 2, 4, 5, 3};
    std::vector<Drafting> together;
    for (const int depth : kDepths) together.push_back(open(*model, depth));
    for (int round = 0; round < kRounds; ++round)
      ASSERT_NO_FATAL_FAILURE(run_round(*model, together, round));
    for (const Drafting& each : together)
      EXPECT_EQ(each.seen, run_alone(*model, each.depth))
          << "depth " << each.depth << ", shared " << share;
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, DraftDeviceTest, testing::ValuesIn(draft_setups()), setup_name);

}  // namespace
}  // namespace tessera::test
