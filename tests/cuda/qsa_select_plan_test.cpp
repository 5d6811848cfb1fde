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
constexpr auto kDecode = ops::Role::kDecode, kPrefill = ops::Role::kPrefill;

TEST(QsaSelectPlanTest, TheLongestContextStaysOnTheFastKernels) {
  const SelectPlan plan = plan_select(kReleased, kKeys, kDecode, 256, kLongest, kH200);
  EXPECT_TRUE(plan.fast_scores);
  EXPECT_EQ(plan.cluster, kMaxCluster);
  EXPECT_EQ(plan.rows_per_pass, 256);
  EXPECT_EQ(plan.scratch_bytes(), 256 * kLongest * 4);
  EXPECT_EQ(plan_select(kReleased, kKeys, kDecode, 256, kLongest + 1, kH200).cluster, 0);
}

TEST(QsaSelectPlanTest, TheSmallestClusterHoldsTheRow) {
  for (const int64_t capacity : {int64_t{0}, int64_t{1}, int64_t{8192}, int64_t{8193},
                                 int64_t{16384}, int64_t{40000}, kLongest}) {
    const int cluster = choice_cluster(capacity);
    EXPECT_GE(int64_t{cluster} * kChooseKeys, capacity);
    if (cluster > 1) {
      EXPECT_LT(int64_t{cluster} / 2 * kChooseKeys, capacity);
    }
    EXPECT_EQ(cluster & (cluster - 1), 0);
  }
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
  GpuSpec ampere = kH200;
  ampere.compute_major = 8;
  EXPECT_NE(std::string(supports_cluster_choice(kLongest, ampere)).find("sm_90"),
            std::string::npos);
}

TEST(QsaSelectPlanTest, PromptScoresStayWithinBoundedMemory) {
  for (const int rows : {1, 63, 64, 8192, 100000})
    for (const int64_t capacity : {int64_t{1}, int64_t{513}, int64_t{16384}, kLongest}) {
      const SelectPlan plan = plan_select(kReleased, kKeys, kPrefill, rows, capacity, kH200);
      EXPECT_GE(plan.rows_per_pass, std::min(rows, kTileRows));
      EXPECT_LE(plan.rows_per_pass, rows);
      EXPECT_LE(plan.scratch_bytes(), kPrefillScoreBytes);
      EXPECT_GE(plan.stride, capacity);
      EXPECT_EQ(plan.stride % kTileKeys, 0) << "a tile may not reach into the next row";
      if (plan.rows_per_pass < rows) {
        EXPECT_EQ(plan.rows_per_pass % kTileRows, 0) << "tiles start on the same rows in any pass";
      }
    }
}

TEST(QsaSelectPlanTest, SplitsFillTheDeviceButHoldAKeyTileEach) {
  EXPECT_EQ(prefill_splits(1, 600, kH200), 10);
  EXPECT_EQ(prefill_splits(16, 16384, kH200), 17);
  EXPECT_EQ(prefill_splits(10000, 16384, kH200), 1);
}

}  // namespace
}  // namespace tessera::cuda
