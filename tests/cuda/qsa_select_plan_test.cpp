// SPDX-License-Identifier: Apache-2.0
// Memory and kernels of a block selection for any context length.
#include "cuda/qsa_select/qsa_select_plan.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::cuda {
namespace {

constexpr ops::QsaShape kReleased{.heads = 24,
                                  .kv_heads = 2,
                                  .head_dim = 256,
                                  .index_heads = 4,
                                  .index_dim = 128,
                                  .block = 4,
                                  .rotary_dim = 64};
constexpr ops::PageRef kKeys{
    .pool = nullptr, .page_stride = 1 << 20, .offset = 4096, .dtype = DType::kBF16};
constexpr int64_t kLongest = 262144 / 4;
constexpr int kBudget = 512;
constexpr auto kDecode = ops::Role::kDecode, kPrefill = ops::Role::kPrefill;

TEST(QsaSelectPlanTest, TheLongestContextStaysOnTheFastKernels) {
  const SelectPlan plan = plan_select(kReleased, kKeys, kDecode, 256, kLongest, kBudget);
  EXPECT_TRUE(plan.fast_scores);
  EXPECT_TRUE(plan.fast_choice);
  EXPECT_EQ(plan.rows_per_pass, 256);
  EXPECT_EQ(plan.num_scores(), 256 * kLongest);
  EXPECT_EQ(plan.scratch_bytes(), 256 * (kLongest + kLongest / 16) * 4);
}

TEST(QsaSelectPlanTest, TheChoiceByGroupsNeedsTheirTopsAndAThreadForEachChosenOne) {
  const auto chosen_by_groups = [](const ops::PageRef& keys, int64_t capacity, int budget) {
    return plan_select(kReleased, keys, kDecode, 4, capacity, budget).fast_choice;
  };
  EXPECT_TRUE(chosen_by_groups(kKeys, 0, kBudget));
  EXPECT_FALSE(chosen_by_groups(kKeys, kLongest + 1, kBudget));
  EXPECT_FALSE(chosen_by_groups(kKeys, kLongest, kBudget + 1));
  ops::PageRef odd = kKeys;
  odd.offset += 2;
  EXPECT_FALSE(chosen_by_groups(odd, kLongest, kBudget)) << "generic scores have no tops";
}

TEST(QsaSelectPlanTest, RefusalsHaveReasons) {
  const auto refused = [](auto change) {
    ops::QsaShape shape = kReleased;
    ops::PageRef keys = kKeys;
    change(shape, keys);
    return std::string(supports_fast_scores(shape, keys));
  };
  using Shape = ops::QsaShape;
  using Page = ops::PageRef;
  EXPECT_EQ(refused([](Shape&, Page&) {}), "");
  EXPECT_NE(refused([](Shape& shape, Page&) { shape.index_heads = 2; }).find("heads"),
            std::string::npos);
  EXPECT_NE(refused([](Shape& shape, Page&) { shape.index_dim = 64; }).find("index dim"),
            std::string::npos);
  EXPECT_NE(refused([](Shape& shape, Page&) { shape.block = 2; }).find("16 blocks"),
            std::string::npos);
  EXPECT_NE(refused([](Shape&, Page& keys) { keys.dtype = DType::kF32; }).find("BF16"),
            std::string::npos);
  EXPECT_NE(refused([](Shape&, Page& keys) { keys.offset = 2; }).find("aligned"),
            std::string::npos);
  EXPECT_EQ(supports_fast_choice(kLongest, kBudget), "");
  EXPECT_NE(std::string(supports_fast_choice(kLongest + 1, kBudget)).find("more groups"),
            std::string::npos);
  EXPECT_NE(std::string(supports_fast_choice(kLongest, kBudget + 1)).find("chosen groups"),
            std::string::npos);
}

TEST(QsaSelectPlanTest, PromptScoresStayWithinBoundedMemory) {
  for (const int rows : {1, 63, 64, 8192, 100000})
    for (const int64_t capacity : {int64_t{1}, int64_t{513}, int64_t{16384}, kLongest}) {
      const SelectPlan plan = plan_select(kReleased, kKeys, kPrefill, rows, capacity, kBudget);
      EXPECT_GE(plan.rows_per_pass, std::min(rows, kTileRows));
      EXPECT_LE(plan.rows_per_pass, rows);
      EXPECT_LE(plan.num_scores() * 4, kPrefillScoreBytes);
      EXPECT_GE(plan.stride, capacity);
      EXPECT_EQ(plan.stride % kTileKeys, 0) << "a tile may not reach into the next row";
      if (plan.rows_per_pass < rows) {
        EXPECT_EQ(plan.rows_per_pass % kTileRows, 0) << "tiles start on the same rows in any pass";
      }
    }
}

TEST(QsaSelectPlanTest, SplitsFillTheDeviceButHoldAKeyTileEach) {
  EXPECT_EQ(prefill_splits(1, 600, kH200), 10);
  EXPECT_EQ(prefill_splits(16, 16384, kH200), 16);
  EXPECT_EQ(prefill_splits(10000, 16384, kH200), 1);
  for (int tiles = 1; tiles <= kScoreBlocksPerSm * kH200.num_sms; ++tiles) {
    EXPECT_LE(tiles * prefill_splits(tiles, kLongest, kH200), kScoreBlocksPerSm * kH200.num_sms)
        << "a block left over would take a second turn";
  }
}

}  // namespace
}  // namespace tessera::cuda
