// SPDX-License-Identifier: Apache-2.0
// Which QSA front kernel runs, and that every task of every row has a warp.
#include "cuda/qsa_front/qsa_front_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace tessera::cuda {
namespace {

constexpr ops::QsaShape kReleased{.heads = 24,
                                  .kv_heads = 2,
                                  .head_dim = 256,
                                  .index_heads = 4,
                                  .index_dim = 128,
                                  .block = 4,
                                  .rotary_dim = 64};

ops::QsaCache cache_of(DType dtype) {
  ops::QsaCache cache;
  cache.keys = {.page_stride = 1 << 20, .offset = 0, .dtype = dtype};
  cache.values = {.page_stride = 1 << 20, .offset = 1 << 16, .dtype = dtype};
  cache.index_keys = {.page_stride = 1 << 20, .offset = 1 << 17, .dtype = DType::kBF16};
  cache.raw_keys = {.offset = 0, .entry_bytes = 256, .slots = 16, .reach = 3};
  cache.positions = {.offset = 4096, .entry_bytes = 12, .slots = 16, .reach = 3};
  return cache;
}

std::string refusal(const ops::QsaShape& shape, const ops::QsaCache& cache) {
  return std::string(supports_fast_front(shape, cache));
}

TEST(QsaFrontPlanTest, TakesTheReleasedGeometryWithEitherCacheType) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3})
    EXPECT_EQ(refusal(kReleased, cache_of(dtype)), "");
  ops::QsaShape fewer_heads = kReleased;
  fewer_heads.heads = 12;
  fewer_heads.kv_heads = 1;
  EXPECT_EQ(refusal(fewer_heads, cache_of(DType::kBF16)), "");
}

TEST(QsaFrontPlanTest, RefusalsHaveReasons) {
  const auto refused = [](auto change) {
    ops::QsaShape shape = kReleased;
    ops::QsaCache cache = cache_of(DType::kBF16);
    change(shape, cache);
    return refusal(shape, cache);
  };
  using Shape = ops::QsaShape;
  using Cache = ops::QsaCache;
  EXPECT_NE(refused([](Shape& shape, Cache&) { shape.head_dim = 128; }).find("head dim"),
            std::string::npos);
  EXPECT_NE(refused([](Shape& shape, Cache&) { shape.index_dim = 64; }).find("index dim"),
            std::string::npos);
  EXPECT_NE(refused([](Shape& shape, Cache&) { shape.rotary_dim = 32; }).find("rotary"),
            std::string::npos);
  EXPECT_NE(refused([](Shape& shape, Cache&) { shape.block = 8; }).find("4 tokens"),
            std::string::npos);
  EXPECT_NE(refused([](Shape& shape, Cache&) { shape.index_heads = 3; }).find("odd"),
            std::string::npos);
  EXPECT_NE(refused([](Shape&, Cache& cache) { cache.values.dtype = DType::kF32; }).find("BF16"),
            std::string::npos);
  EXPECT_NE(refused([](Shape&, Cache& cache) { cache.keys.offset = 8; }).find("aligned"),
            std::string::npos);
  EXPECT_NE(refused([](Shape&, Cache& cache) { cache.raw_keys.offset = 4; }).find("aligned"),
            std::string::npos);
}

/// Rows, and whether they have queries.
constexpr std::pair<int, bool> kLaunches[] = {{0, true},    {1, true},    {4, true},
                                              {256, true},  {8192, true}, {1, false},
                                              {256, false}, {8192, false}};

TEST(QsaFrontPlanTest, EveryTaskHasAWarp) {
  ops::QsaShape odd = kReleased;
  odd.index_heads = 1;
  odd.index_dim = 9;
  for (const ops::QsaShape& shape : {kReleased, odd})
    for (const ops::Role role : {ops::Role::kDecode, ops::Role::kPrefill})
      for (const auto& [rows, queries] : kLaunches) {
        const FrontPlan plan = plan_front(shape, cache_of(DType::kBF16), role, rows, queries);
        const int index_tasks = plan.fast ? shape.index_heads / 2 : shape.index_heads;
        const int all_tasks = shape.heads + index_tasks + 2 * shape.kv_heads + 1;
        EXPECT_EQ(plan.first_task, queries ? 0 : shape.heads + index_tasks);
        EXPECT_EQ(plan.first_task + plan.tasks_per_row, all_tasks);
        EXPECT_GE(plan.warps_per_row * plan.tasks_per_warp, plan.tasks_per_row);
        EXPECT_LT((plan.warps_per_row - 1) * plan.tasks_per_warp, plan.tasks_per_row);
        EXPECT_GE(plan.blocks * kFrontWarps, int64_t{rows} * plan.warps_per_row);
        if (!plan.fast) {
          EXPECT_EQ(plan.tasks_per_warp, 1) << "the generic kernel knows one task per warp";
        }
      }
}

}  // namespace
}  // namespace tessera::cuda
