// SPDX-License-Identifier: Apache-2.0
// How attention is spread over thread blocks, and which kernel takes which launch.
#include "cuda/qsa_attend/qsa_attend_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::cuda {
namespace {

constexpr ops::QsaShape kReleased{.heads = 24,
                                  .kv_heads = 2,
                                  .head_dim = 256,
                                  .index_heads = 4,
                                  .index_dim = 128,
                                  .block = 4,
                                  .rotary_dim = 64};
constexpr int kBudget = 512;
constexpr int kSingleFits = 8, kWideFits = 8;  // clusters of 16 on an H200

ops::QsaCache released_cache(DType dtype = DType::kBF16) {
  ops::QsaCache cache;
  cache.keys = {.pool = nullptr, .page_stride = 1 << 20, .offset = 0, .dtype = dtype};
  cache.values = {.pool = nullptr, .page_stride = 1 << 20, .offset = 65536, .dtype = dtype};
  return cache;
}

int decode_tile(int num_spans, int num_rows, int fits_single = kSingleFits) {
  return plan_attend(ops::Role::kDecode, num_spans, num_rows, kReleased.kv_heads, kBudget,
                     fits_single, kWideFits);
}

TEST(QsaAttendPlanTest, FewRowsSpreadAndManyRowsShare) {
  EXPECT_EQ(decode_tile(1, 1), kSingleRowTile);
  EXPECT_EQ(decode_tile(1, 4), kSingleRowTile);
  EXPECT_EQ(decode_tile(1, 6), kWideTile);
  EXPECT_EQ(decode_tile(4, 16), kSharedTile);
  EXPECT_EQ(decode_tile(32, 128), kSharedTile);
  EXPECT_EQ(decode_tile(1, 4, kSingleFits - 1), kWideTile);
  EXPECT_EQ(plan_attend(ops::Role::kDecode, 1, 4, kReleased.kv_heads, kBudget, 0, 0), kSharedTile);
  EXPECT_EQ(
      plan_attend(ops::Role::kPrefill, 1, 4, kReleased.kv_heads, kBudget, kSingleFits, kWideFits),
      kPrefillTile);
}

TEST(QsaAttendPlanTest, SmallBudgetsNeedNoWideClusters) {
  EXPECT_EQ(plan_attend(ops::Role::kDecode, 1, 1, 1, 16, kSingleFits, kWideFits), kSharedTile);
  EXPECT_EQ(plan_attend(ops::Role::kDecode, 1, 1, 1, 2048, kSingleFits, kWideFits), kSharedTile);
}

/// Every tile has one owner, and a block's tiles never cross a part: what the fold's order rests
/// on.
TEST(QsaAttendPlanTest, SplitsCoverTheTilesInParts) {
  for (const AttendTile& tile : kAttendTiles)
    for (const int budget : {1, 16, 32, 33, 100, 128, 129, 480, 481, 512, 600, 2048}) {
      const AttendSplit split = split_attend(budget, tile.splits);
      SCOPED_TRACE(testing::Message() << budget << " blocks in " << tile.splits << " splits");
      EXPECT_GE(split.num_tiles * kAttendTileBlocks, budget);
      EXPECT_LT((split.num_tiles - 1) * kAttendTileBlocks, budget);
      EXPECT_EQ(split.tiles_per_part % split.tiles_per_block, 0);
      if (tile.splits == 1 || tile.splits == kAttendParts ||
          split.num_tiles <= kAttendTiles[kWideTile].splits) {
        EXPECT_GE(split.tiles_per_block * tile.splits, split.num_tiles);
      }
      if (tile.splits > 1) {
        EXPECT_EQ(split.tiles_per_part, split_attend(budget, kAttendParts).tiles_per_part);
      }
    }
}

/// Lengths may change under a recorded launch: the counts alone must bound the groups.
TEST(QsaAttendPlanTest, GroupsAreBoundedByCounts) {
  constexpr int kRows = 4;
  for (const std::vector<int>& rows : std::vector<std::vector<int>>{{1},
                                                                    {6},
                                                                    {4},
                                                                    {70},
                                                                    {1, 1, 1},
                                                                    {6, 1, 6},
                                                                    {4, 4},
                                                                    {3, 5},
                                                                    {0, 0, 9},
                                                                    {0, 1, 0, 0, 0, 2}}) {
    int total = 0, groups = 0;
    for (const int count : rows) total += count, groups += (count + kRows - 1) / kRows;
    EXPECT_LE(groups, max_attend_groups(static_cast<int>(rows.size()), total, kRows));
  }
  EXPECT_EQ(max_attend_groups(5, 5, 1), 5);
  EXPECT_EQ(max_attend_groups(2, 9, 1), 9);
}

TEST(QsaAttendPlanTest, QueryGroupsFollowAbsolutePositions) {
  EXPECT_EQ(UnionPlan::groups(0, 0), 0);
  EXPECT_EQ(UnionPlan::groups(0, 8), 1);
  EXPECT_EQ(UnionPlan::groups(7, 1), 1);
  EXPECT_EQ(UnionPlan::groups(7, 2), 2);
  EXPECT_EQ(UnionPlan::groups(5, 12), 3);
  EXPECT_EQ(UnionPlan::groups(64, 8192), 1024);
}

TEST(QsaAttendPlanTest, RefusalsHaveReasons) {
  const auto refused = [](auto change) {
    ops::QsaShape shape = kReleased;
    ops::QsaCache cache = released_cache();
    GpuSpec gpu = kH200;
    change(shape, cache, gpu);
    return std::string(supports_fast_attend(shape, cache, gpu));
  };
  using Shape = ops::QsaShape;
  using Cache = ops::QsaCache;
  EXPECT_EQ(refused([](Shape&, Cache&, GpuSpec&) {}), "");
  EXPECT_EQ(refused([](Shape&, Cache& cache, GpuSpec&) { cache = released_cache(DType::kF8E4M3); }),
            "");
  const auto has = [](const std::string& reason, const char* part) {
    return reason.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(refused([](Shape&, Cache&, GpuSpec& gpu) { gpu.compute_major = 8; }), "device"));
  EXPECT_TRUE(
      has(refused([](Shape& shape, Cache&, GpuSpec&) { shape.head_dim = 128; }), "head dim"));
  EXPECT_TRUE(has(refused([](Shape& shape, Cache&, GpuSpec&) { shape.block = 2; }), "4 tokens"));
  EXPECT_TRUE(has(refused([](Shape& shape, Cache&, GpuSpec&) { shape.kv_heads = 4; }), "12"));
  EXPECT_TRUE(
      has(refused([](Shape&, Cache& cache, GpuSpec&) { cache.values.offset += 2; }), "aligned"));
  EXPECT_TRUE(
      has(refused([](Shape&, Cache& cache, GpuSpec&) { cache.values.dtype = DType::kF8E4M3; }),
          "differ"));
  EXPECT_TRUE(
      has(refused([](Shape&, Cache& cache, GpuSpec&) { cache = released_cache(DType::kF32); }),
          "neither"));
}

TEST(QsaAttendPlanTest, ThePromptKernelTakesPromptsOnly) {
  const std::vector<ops::RowSpan> spans{{.row_begin = 0, .num_rows = 70, .position = 9000}};
  ops::QsaAttendArgs args;
  args.shape = kReleased;
  args.cache = released_cache();
  args.budget_blocks = kBudget;
  args.batch = {spans, 70, ops::Role::kPrefill};
  EXPECT_EQ(std::string(supports_union_attend(args)), "");
  args.batch.role = ops::Role::kDecode;
  EXPECT_NE(std::string(supports_union_attend(args)), "");
  args.batch.role = ops::Role::kPrefill;
  args.budget_blocks = kBudget + 1;
  EXPECT_NE(std::string(supports_union_attend(args)), "");
  args.budget_blocks = kBudget;
  args.cache = released_cache(DType::kF8E4M3);
  EXPECT_NE(std::string(supports_union_attend(args)), "");
}

}  // namespace
}  // namespace tessera::cuda
