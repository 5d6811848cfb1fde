// SPDX-License-Identifier: Apache-2.0
// The goals of a draft bench, on made-up measurements.
#include <gtest/gtest.h>
#include <tessera/bench.h>

namespace tessera {
namespace {

constexpr double kStepSeconds = 1e-3;
constexpr double kStepBytes = 1e6;

/// K = 0 at 1000 tokens/s, K = 3 with 1.5 times the bytes, kDraftAuto.
DraftCase made_up(double deep_speed, double deep_seconds, double adaptive_speed) {
  DraftCase each{.text = "prose", .batch = 1, .tokens = 64};
  each.rows = {{.depth = 0,
                .tokens_per_second = 1000,
                .seconds_per_round = kStepSeconds,
                .bytes_per_round = kStepBytes},
               {.depth = 3,
                .tokens_per_second = deep_speed,
                .seconds_per_round = deep_seconds,
                .verify_share = 0.75,
                .draft_share = 0.125,
                .bytes_per_round = 1.5 * kStepBytes},
               {.depth = kDraftAuto, .tokens_per_second = adaptive_speed}};
  return each;
}

TEST(DraftCase, ARoundIsComparedWithItsBytesAtTheRateOfAPlainStep) {
  const DraftCase met = made_up(2000, 1.2 * 1.5 * kStepSeconds, 2000);
  EXPECT_DOUBLE_EQ(met.times_goal(met.rows[1]), 1.0);
  const DraftCase missed = made_up(2000, 2 * 1.2 * 1.5 * kStepSeconds, 2000);
  EXPECT_DOUBLE_EQ(missed.times_goal(missed.rows[1]), 2.0);
}

TEST(DraftCase, OnlyFixedDepthsWithCountedBytesHaveAGoal) {
  DraftCase each = made_up(2000, kStepSeconds, 2000);
  EXPECT_EQ(each.times_goal(each.rows[0]), 0);
  EXPECT_EQ(each.times_goal(each.rows[2]), 0);
  each.rows[0].bytes_per_round = 0;
  EXPECT_EQ(each.times_goal(each.rows[1]), 0);
  EXPECT_EQ(DraftCase{}.times_goal({.depth = 1}), 0);
}

TEST(DraftCase, TheAdaptiveDepthIsComparedWithTheBestFixedOne) {
  const DraftCase drafting_pays = made_up(2000, kStepSeconds, 1900);
  EXPECT_EQ(drafting_pays.best_fixed()->depth, 3);
  EXPECT_DOUBLE_EQ(drafting_pays.adaptive_ratio(), 0.95);
  const DraftCase plain_is_best = made_up(500, kStepSeconds, 990);
  EXPECT_EQ(plain_is_best.best_fixed()->depth, 0);
  EXPECT_DOUBLE_EQ(plain_is_best.adaptive_ratio(), 0.99);
}

TEST(DraftCase, WithoutAnAdaptiveRunThereIsNoRatio) {
  DraftCase each = made_up(2000, kStepSeconds, 1900);
  each.rows.pop_back();
  EXPECT_EQ(each.adaptive(), nullptr);
  EXPECT_EQ(each.adaptive_ratio(), 0);
  EXPECT_EQ(DraftCase{}.best_fixed(), nullptr);
}

TEST(DraftCase, CommitIsTheShareOfNeitherHalf) {
  EXPECT_DOUBLE_EQ(made_up(2000, kStepSeconds, 1900).rows[1].commit_share(), 0.125);
}

TEST(DraftCase, OneDifferentTextMarksTheCase) {
  DraftCase each = made_up(2000, kStepSeconds, 1900);
  EXPECT_TRUE(each.same_text());
  each.rows[2].same_text = false;
  EXPECT_FALSE(each.same_text());
}

}  // namespace
}  // namespace tessera
