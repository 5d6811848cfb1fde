// SPDX-License-Identifier: Apache-2.0
// The chosen depth on made-up machines and texts.
#include "runtime/draft_policy.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr int kMost = 5;

AcceptanceRates rates_of(std::initializer_list<int> accepted, int repeats = 20) {
  AcceptanceRates rates;
  for (int repeat = 0; repeat < repeats; ++repeat)
    for (const int count : accepted) rates.count(kMost, count);
  return rates;
}

/// A machine on which a launch costs `base` and every row or draft its share.
DraftPolicy policy_of(double base, double per_row, double per_draft) {
  DraftPolicy policy;
  for (int depth = 0; depth <= kMost; ++depth) {
    policy.trunk_launch(depth + 1, base + per_row * (depth + 1));
    policy.draft_phase(depth, per_draft * depth);
  }
  return policy;
}

int depth_of(const DraftPolicy& policy, const AcceptanceRates& rates, int copies = 1) {
  const std::vector<const AcceptanceRates*> all(static_cast<size_t>(copies), &rates);
  return policy.best_depth(all, 0, kMost);
}

TEST(DraftPolicy, ExpectedTokensFollowTheRates) {
  EXPECT_DOUBLE_EQ(AcceptanceRates().expected_tokens(0), 1.0);
  EXPECT_NEAR(rates_of({kMost}, 40).expected_tokens(kMost), 1 + kMost, 0.1);
  EXPECT_NEAR(rates_of({0}).expected_tokens(kMost), 1.0, 0.1);
  // Places behind a rejected draft keep what they knew.
  EXPECT_NEAR(rates_of({0, kMost}).expected_tokens(1), 1.5, 0.15);
}

TEST(DraftPolicy, CheapRowsAndGoodDraftsGoDeep) {
  EXPECT_EQ(depth_of(policy_of(10, 0.1, 0.2), rates_of({kMost})), kMost);
}

TEST(DraftPolicy, BadDraftsOrDearRowsAreNotDrafted) {
  EXPECT_EQ(depth_of(policy_of(10, 0.1, 0.2), rates_of({0})), 0);
  EXPECT_EQ(depth_of(policy_of(0, 10, 5), rates_of({kMost})), 0);
}

TEST(DraftPolicy, SteepRatesStopWhereDraftsStopPaying) {
  const int depth = depth_of(policy_of(10, 1, 1), rates_of({1, 2, 1, 2}));
  EXPECT_GE(depth, 1);
  EXPECT_LE(depth, 2);
}

/// Rows that a batch fills anyway make drafts dear.
TEST(DraftPolicy, LargeBatchesDraftLess) {
  DraftPolicy policy;
  for (int rows = 1; rows <= 48; ++rows) policy.trunk_launch(rows, 10 + 1.5 * rows);
  for (int depth = 0; depth <= kMost; ++depth) policy.draft_phase(depth, 0.5 * depth);
  const AcceptanceRates rates = rates_of({2, 3, 1});
  EXPECT_LE(depth_of(policy, rates, 8), depth_of(policy, rates, 1));
}

/// Rows that cost next to nothing up to a limit, then a lot: no line says where drafts stop paying.
TEST(DraftPolicy, CostsNeedNotLieOnALine) {
  DraftPolicy policy;
  for (int depth = 0; depth <= kMost; ++depth) {
    policy.trunk_launch(depth + 1, depth < 3 ? 10 : 40);
    policy.draft_phase(depth, 0.5 * depth);
  }
  EXPECT_EQ(depth_of(policy, rates_of({kMost})), 2);
}

TEST(DraftPolicy, PlainRoundsDoNotForgetWhatDeepOnesCost) {
  DraftPolicy policy = policy_of(10, 0.1, 0.2);
  for (int round = 0; round < 1000; ++round) policy.trunk_launch(1, 10.1);
  EXPECT_EQ(depth_of(policy, rates_of({kMost})), kMost);
}

TEST(DraftPolicy, ATrialEndsWhereTheBestThatCanComeDoesNotPay) {
  const DraftPolicy dear = policy_of(0, 10, 1);
  EXPECT_EQ(depth_of(dear, AcceptanceRates().at_best(kMost)), 0);
  const DraftPolicy fair = policy_of(10, 1, 1);
  AcceptanceRates rates;
  for (int round = 0; rates.on_trial(); ++round) {
    ASSERT_LT(round, 100);
    rates.count(kMost, 0);
  }
  EXPECT_EQ(depth_of(fair, rates), 0);
  AcceptanceRates unlucky;
  unlucky.count(kMost, 0);
  EXPECT_TRUE(unlucky.on_trial());
  EXPECT_GT(depth_of(fair, unlucky.at_best(kMost)), 0);
}

TEST(DraftPolicy, SequencesBeginWithWhatOthersMet) {
  DraftPolicy good, bad;
  for (int round = 0; round < 500; ++round) {
    good.count(kMost, kMost);
    bad.count(kMost, 0);
  }
  EXPECT_GT(good.first_rates().expected_tokens(kMost), kMost);
  EXPECT_LT(bad.first_rates().expected_tokens(kMost), 1.1);
  // Without news they go back to what is assumed at first.
  AcceptanceRates last;
  for (int sequence = 0; sequence < 500; ++sequence) last = bad.first_rates();
  EXPECT_NEAR(last.expected_tokens(kMost), AcceptanceRates().expected_tokens(kMost), 0.01);
}

TEST(DraftPolicy, OneDisturbedLaunchDoesNotDecide) {
  DraftPolicy policy = policy_of(10, 0.1, 0.2);
  policy.trunk_launch(4, 10000);
  EXPECT_GT(depth_of(policy, rates_of({kMost})), 2);
}

}  // namespace
}  // namespace tessera
