// SPDX-License-Identifier: Apache-2.0
// What only the fast row kernels promise: every instruction level is right, the exponential is
// accurate, selection is exact, thread counts change no bit, and scratch memory is bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/parallel.h"
#include "core/philox.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/qsa_select_topk.h"
#include "cpu/fast/rows_level.h"
#include "cpu/fast/vector_math.h"
#include "support/tolerance.h"

namespace tessera::cpu {
namespace {

using test::close;
using test::same_bits;
using test::sum_tolerance;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_floats(size_t count, uint64_t seed) {
  std::vector<float> values(count);
  uint64_t draw = 0;
  for (float& value : values)
    value = static_cast<float>(2 * philox_uniform(seed, draw++, DrawPurpose::kWeights) - 1);
  return values;
}

size_t size(int value) { return static_cast<size_t>(value); }

/// Pointers to rows that start one element off any alignment.
struct ScatteredRows {
  std::vector<float> values;
  std::vector<const float*> rows;

  ScatteredRows(int count, int width, uint64_t seed)
      : values(random_floats(size(count) * size(width + 1) + 1, seed)) {
    for (int row = 0; row < count; ++row)
      rows.push_back(values.data() + 1 + static_cast<ptrdiff_t>(row) * (width + 1));
  }
};

TEST(VectorMath, ExponentialIsAccurateEverywhere) {
  constexpr double kUnits = 2;  // in the last place
  for (float x = -87.3F; x < 88.7F; x += 0.0137F) {
    const double want = std::exp(double{x});
    ASSERT_NEAR(vector_exp(x) / want, 1.0, kUnits * double{std::numeric_limits<float>::epsilon()})
        << x;
  }
  EXPECT_EQ(vector_exp(0.0F), 1.0F);
}

TEST(VectorMath, LimitsNeitherTrapNorTurnIntoNan) {
  EXPECT_EQ(vector_exp(-kInfinity), 0.0F);
  EXPECT_EQ(vector_exp(-1e30F), 0.0F);
  EXPECT_EQ(vector_exp(89.0F), kInfinity);
  EXPECT_EQ(vector_exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(vector_exp(kNan)));
  EXPECT_EQ(vector_sigmoid(-kInfinity), 0.0F);
  EXPECT_EQ(vector_sigmoid(kInfinity), 1.0F);
  EXPECT_EQ(vector_sigmoid(0.0F), 0.5F);
  EXPECT_EQ(vector_silu(-1e4F), 0.0F);
  EXPECT_EQ(vector_silu(1e4F), 1e4F);
}

class RowLevelTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (GetParam() >= supported_row_levels().count)
      GTEST_SKIP() << "this processor has fewer instruction levels";
    kernels_ = supported_row_levels().levels[GetParam()];
  }
  const RowKernels* kernels_ = nullptr;
};

TEST_P(RowLevelTest, LaneProductsOfAnySize) {
  for (const int count : {1, 2, 3, 7, 8, 9, 16}) {
    for (const int lanes : {1, 4, 8, 12, 16, 17, 40, 64}) {
      for (const int depth : {0, 1, 16, 33, 128}) {
        const ScatteredRows rows(count, depth, 1);
        const auto packed = random_floats(size(depth) * size(lanes), 2);
        const auto before = random_floats(size(count) * size(lanes), 3);
        auto want = before, got = before;
        for (int row = 0; row < count; ++row) {
          for (int lane = 0; lane < lanes; ++lane) {
            const size_t at = size(row) * size(lanes) + size(lane);
            double sum = double{before[at]};
            for (int d = 0; d < depth; ++d)
              sum += double{rows.rows[size(row)][d]} * double{packed[size(d * lanes + lane)]};
            want[at] = static_cast<float>(sum);
          }
        }
        kernels_->lane_products(
            {rows.rows.data(), count, depth, packed.data(), lanes, got.data(), true, {}});
        ASSERT_TRUE(close(got, want, sum_tolerance(depth), std::sqrt(depth)))
            << count << " x " << lanes << " x " << depth;
      }
    }
  }
}

TEST_P(RowLevelTest, ProductBitsDependOnTheirOwnOperandsOnly) {
  constexpr int kCount = 11, kDepth = 77, kLanes = 40;
  const ScatteredRows rows(kCount, kDepth, 4);
  const auto packed = random_floats(size(kDepth) * kLanes, 5);
  std::vector<float> all(size_t{kCount} * kLanes);
  kernels_->lane_products(
      {rows.rows.data(), kCount, kDepth, packed.data(), kLanes, all.data(), false, {}});
  for (const int lanes : {1, 8, 24}) {
    std::vector<float> narrow;
    for (int d = 0; d < kDepth; ++d)
      narrow.insert(narrow.end(), packed.begin() + d * kLanes, packed.begin() + d * kLanes + lanes);
    for (int row = 0; row < kCount; ++row) {
      std::vector<float> one(size(lanes));
      kernels_->lane_products(
          {&rows.rows[size(row)], 1, kDepth, narrow.data(), lanes, one.data(), false, {}});
      ASSERT_TRUE(same_bits(one, std::span(all).subspan(size(row * kLanes), size(lanes))));
    }
  }
}

TEST_P(RowLevelTest, WeightedSumsOfAnySize) {
  for (const int heads : {1, 5, 6, 7, 12, 16}) {
    for (const int width : {1, 8, 15, 64, 100, 256}) {
      constexpr int kCount = 13, kStride = 19;
      const ScatteredRows rows(kCount, width, 6);
      const auto weights = random_floats(size_t{kCount} * kStride, 7);
      auto got = random_floats(size(heads) * size(width), 8);
      auto want = got;
      for (int head = 0; head < heads; ++head) {
        for (int col = 0; col < width; ++col) {
          double sum = double{want[size(head * width + col)]};
          for (int row = 0; row < kCount; ++row)
            sum += double{weights[size(row * kStride + head)]} * double{rows.rows[size(row)][col]};
          want[size(head * width + col)] = static_cast<float>(sum);
        }
      }
      kernels_->weighted_sum(
          {rows.rows.data(), kCount, width, weights.data(), kStride, heads, got.data(), {}});
      ASSERT_TRUE(close(got, want, sum_tolerance(kCount))) << heads << " x " << width;
    }
  }
}

TEST_P(RowLevelTest, DeltaStepFollowsTheRule) {
  for (const int columns : {1, 3, 16, 31, 32}) {
    constexpr int kKeyDim = 19, kStride = 37;
    constexpr double kDecay = 0.7, kBeta = 0.3;
    auto state = random_floats(size_t{kKeyDim} * kStride, 9);
    const auto before = state;
    const auto key = random_floats(kKeyDim, 10), query = random_floats(kKeyDim, 11);
    const auto value = random_floats(size(columns), 12);
    const double key_query =
        std::inner_product(key.begin(), key.end(), query.begin(), 0.0, std::plus<>(),
                           [](float a, float b) { return double{a} * double{b}; });
    auto want_state = before;
    std::vector<float> want(size(columns)), got(size(columns));
    for (int col = 0; col < columns; ++col) {
      double known = 0, out = 0;
      for (int d = 0; d < kKeyDim; ++d)
        known += kDecay * double{before[size(d * kStride + col)]} * double{key[size(d)]};
      for (int d = 0; d < kKeyDim; ++d) {
        const double cell = kDecay * double{before[size(d * kStride + col)]} +
                            double{key[size(d)]} * kBeta * (double{value[size(col)]} - known);
        want_state[size(d * kStride + col)] = static_cast<float>(cell);
        out += cell * double{query[size(d)]};
      }
      want[size(col)] = static_cast<float>(out);
    }
    kernels_->delta_step({state.data(), kStride, kKeyDim, columns, key.data(), query.data(),
                          value.data(), static_cast<float>(key_query), static_cast<float>(kDecay),
                          static_cast<float>(kBeta), got.data()});
    ASSERT_TRUE(close(got, want, sum_tolerance(kKeyDim), 1.0)) << columns;
    ASSERT_TRUE(close(state, want_state, sum_tolerance(kKeyDim))) << columns;
  }
}

TEST_P(RowLevelTest, BlockScoresOfAnySizeDoNotDependOnTheirNeighbours) {
  constexpr float kScale = 0.25F;
  constexpr int kMaxCount = 17;
  for (const int dim : {1, 16, 31, 128}) {
    for (const int heads : {1, 3, 4, 6}) {
      auto keys = random_floats(size(kMaxCount) * size(dim), 13);
      keys[size(2 * dim)] = kNan;  // NaN of a key must reach its own score and no other
      const auto queries = random_floats(size(heads) * size(dim), 14);
      std::vector<float> all(kMaxCount);
      kernels_->block_scores(
          {keys.data(), kMaxCount, dim, queries.data(), heads, kScale, all.data(), keys.data()});
      for (int block = 0; block < kMaxCount; ++block) {
        const float* key = keys.data() + block * dim;
        double want = 0;
        for (int head = 0; head < heads; ++head) {
          double dot = 0;
          for (int d = 0; d < dim; ++d)
            dot += double{queries[size(head * dim + d)]} * double{key[d]};
          want += std::isnan(dot) ? dot : std::max(dot, 0.0);
        }
        float alone = 0;
        kernels_->block_scores({key, 1, dim, queries.data(), heads, kScale, &alone, nullptr});
        ASSERT_TRUE(same_bits(std::span(&alone, 1), std::span(all).subspan(size(block), 1)));
        if (block == 2) {
          ASSERT_TRUE(std::isnan(alone));
          continue;
        }
        ASSERT_NEAR(double{alone}, want * double{kScale},
                    sum_tolerance(dim) * std::sqrt(double(dim)) * heads * double{kScale})
            << block << ": " << heads << " x " << dim;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, RowLevelTest, testing::Values(0, 1, 2));

std::vector<int32_t> top_by_sorting(const std::vector<float>& scores, int k) {
  std::vector<int32_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t left, int32_t right) {
    const float a = scores[static_cast<size_t>(left)], b = scores[static_cast<size_t>(right)];
    return !std::isnan(a) && (std::isnan(b) || a > b);
  });
  ids.resize(size(k));
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST(SelectTop, AgreesWithSortingForAnyTies) {
  // Few distinct values, neighbours in every digit of the key: ties at the cut are the normal case.
  const std::vector<float> alphabet = {0.0F,     -0.0F,     1.0F,       std::nextafter(1.0F, 2.0F),
                                       1.0F / 3, kNan,      2e-45F,     -1.0F,
                                       -2.0F,    kInfinity, -kInfinity, 1.001F};
  EXPECT_TRUE(rc::check("select_top", [&] {
    const auto picks = *rc::gen::nonEmpty(
        rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, alphabet.size())));
    RC_PRE(picks.size() >= 2);
    std::vector<float> scores;
    for (const size_t pick : picks) scores.push_back(alphabet[pick]);
    const auto count = static_cast<int>(scores.size());
    const int k = *rc::gen::inRange(1, count + 1);
    std::vector<uint32_t> keys(scores.size());
    std::vector<int32_t> ids(size(k));
    select_top(scores.data(), count, k, keys.data(), ids.data());
    RC_ASSERT(ids == top_by_sorting(scores, k));
  }));
}

/// One sequence with random caches, attended and selected by its last rows.
struct QsaCase {
  static constexpr int kBudget = 96;
  ops::QsaShape shape{6, 2, 40, 4, 24, 4, 8};
  std::vector<float> pool, q, q_gate, index_q, out;
  std::vector<int32_t> pages, blocks, counts;
  ops::RowSpan span;
  ops::QsaCache cache;
  ops::RowBatch batch;

  QsaCase(int rows, int64_t position, ops::Role role) {
    const auto num_pages = size(static_cast<int>((position + rows) / ops::kPageTokens) + 1);
    const size_t kv = size_t{ops::kPageTokens} * size(shape.kv_heads * shape.head_dim);
    const size_t index = size(shape.blocks_per_page() * shape.index_dim);
    const size_t bytes = (2 * kv + index) * sizeof(float);
    pool = random_floats(num_pages * (2 * kv + index), 21);
    pages.resize(num_pages);
    std::iota(pages.rbegin(), pages.rend(), 0);
    auto* base = reinterpret_cast<std::byte*>(pool.data());
    cache.keys = {base, bytes, 0, DType::kF32};
    cache.values = {base, bytes, kv * sizeof(float), DType::kF32};
    cache.index_keys = {base, bytes, 2 * kv * sizeof(float), DType::kF32};
    span = {0, rows, position, nullptr, pages.data()};
    batch = {{&span, 1}, rows, role};
    q = random_floats(size(rows * shape.heads * shape.head_dim), 22);
    q_gate = random_floats(2 * q.size(), 23);
    index_q = random_floats(size(rows * shape.index_heads * shape.index_dim), 24);
    out.resize(q.size());
    blocks.resize(size(rows) * kBudget);
    counts.resize(size(rows));
  }

  void run(Arena& scratch) {
    scratch.reset();
    fast_qsa_select({shape, cache, index_q.data(), kBudget, batch, blocks.data(), counts.data()},
                    scratch);
  }
  void attend(Arena& scratch) {
    scratch.reset();
    fast_qsa_attend({shape, cache, q.data(), q_gate.data(), blocks.data(), counts.data(), kBudget,
                     batch, out.data()},
                    scratch);
  }
};

class ThreadsTest : public testing::TestWithParam<ops::Role> {
 protected:
  void TearDown() override { set_num_threads(0); }
};

TEST_P(ThreadsTest, SelectionAndAttentionHaveTheSameBits) {
  for (const int rows : {1, 4, 40}) {
    QsaCase data(rows, 1500, GetParam());
    Arena scratch;
    std::vector<int32_t> blocks;
    std::vector<float> out;
    for (const int threads : {1, 2, 3, 16}) {
      set_num_threads(threads);
      data.run(scratch);
      data.attend(scratch);
      if (threads == 1) blocks = data.blocks, out = data.out;
      ASSERT_EQ(data.blocks, blocks) << threads;
      ASSERT_TRUE(same_bits(data.out, out)) << threads;
    }
  }
}

TEST_P(ThreadsTest, TiesInSeveralSharesGoToTheLowerBlock) {
  QsaCase data(2, 1500, GetParam());
  std::fill(data.index_q.begin(), data.index_q.end(), 0.0F);
  std::vector<int32_t> first(2 * size_t{QsaCase::kBudget});
  for (size_t at = 0; at < first.size(); ++at)
    first[at] = static_cast<int32_t>(at % QsaCase::kBudget);
  Arena scratch;
  for (const int threads : {1, 2, 3, 16}) {
    set_num_threads(threads);
    data.run(scratch);
    ASSERT_EQ(data.blocks, first) << threads;
  }
}

TEST_P(ThreadsTest, GdnHasTheSameBits) {
  const ops::GdnShape shape{2, 4, 24, 40, 4};
  constexpr int kRows = 150, kPosition = 30, kRingSlots = 8;
  const size_t channels = size(shape.channels()), heads = size(shape.value_heads);
  const size_t values = heads * size(shape.value_dim);
  const auto qkv = random_floats(kRows * channels, 31), z = random_floats(kRows * values, 32);
  const auto a = random_floats(kRows * heads, 33), b = random_floats(kRows * heads, 34);
  const auto conv = random_floats(channels * size(shape.conv_kernel), 35);
  const auto gates = random_floats(heads, 36), norm = random_floats(size(shape.value_dim), 37);
  const auto start = random_floats(kRingSlots * channels + values * size(shape.key_dim), 38);
  std::vector<float> first_out, first_slot;
  for (const int threads : {1, 2, 3, 16}) {
    set_num_threads(threads);
    auto slot = start;
    std::vector<float> out(kRows * values);
    const ops::RowSpan span = {0, kRows, kPosition, reinterpret_cast<std::byte*>(slot.data()),
                               nullptr};
    ops::GdnArgs args{.shape = shape,
                      .qkv = qkv.data(),
                      .z = z.data(),
                      .a = a.data(),
                      .b = b.data(),
                      .conv_weight = conv.data(),
                      .a_log = gates.data(),
                      .dt_bias = gates.data(),
                      .norm = norm.data(),
                      .gate = ops::GateActivation::kSilu,
                      .eps = 1e-6F,
                      .batch = {{&span, 1}, kRows, GetParam()},
                      .conv_ring = {0, channels * sizeof(float), kRingSlots, shape.conv_kernel - 1},
                      .matrix_offset = kRingSlots * channels * sizeof(float),
                      .out = out.data()};
    Arena scratch;
    fast_gdn(args, scratch);
    if (threads == 1) first_out = out, first_slot = slot;
    ASSERT_TRUE(same_bits(out, first_out)) << threads;
    ASSERT_TRUE(same_bits(slot, first_slot)) << threads;
  }
}

INSTANTIATE_TEST_SUITE_P(Roles, ThreadsTest,
                         testing::Values(ops::Role::kPrefill, ops::Role::kDecode));

TEST(ScratchMemory, DoesNotGrowWithContextTimesRows) {
  constexpr int kRows = 64, kLongContext = 40000;
  set_num_threads(2);
  QsaCase data(kRows, kLongContext, ops::Role::kPrefill);
  Arena select_scratch, attend_scratch;
  data.run(select_scratch);
  data.attend(attend_scratch);
  set_num_threads(0);
  const size_t every_score = size_t{kRows} * (kLongContext / 4) * sizeof(float);
  EXPECT_LT(attend_scratch.capacity(), every_score);
  // Two threads hold the scores and keys of 16 rows each, not of all.
  EXPECT_LT(select_scratch.capacity(), every_score);
  EXPECT_THAT(data.counts, testing::Each(QsaCase::kBudget));
}

}  // namespace
}  // namespace tessera::cpu
