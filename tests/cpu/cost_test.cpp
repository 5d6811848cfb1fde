// SPDX-License-Identifier: Apache-2.0
// Cost of the ops: hand-counted bytes and flops on small launches.
#include <array>

#include "cpu/qsa_world.h"

namespace tessera::test {
namespace {

ops::LinearWeight weight_of(DType dtype, int outs, int ins, const float* scale = nullptr) {
  static const int placeholder = 0;
  return {&placeholder, dtype, scale, outs, ins};
}

TEST(CostTest, LinearCountsEachWeightOnceAndRowsOfActivations) {
  const std::vector<float> scale(4, 1.0F);
  const std::array parts{
      ops::LinearPart{weight_of(DType::kBF16, 10, 200), nullptr},
      ops::LinearPart{weight_of(DType::kF8E4M3, 130, 200, scale.data()), nullptr}};
  const ops::Cost cost = ops::cost(ops::LinearArgs{nullptr, parts, 3, ops::Role::kDecode});
  EXPECT_EQ(cost.bytes_read, 10 * 200 * 2 + 130 * 200 + 4 * 4 + 3 * 200 * 4);
  EXPECT_EQ(cost.bytes_written, 3 * (10 + 130) * 4);
  EXPECT_EQ(cost.flops, 2.0 * 3 * 200 * (10 + 130));
  EXPECT_EQ(ops::cost(ops::LinearArgs{nullptr, parts, 0, ops::Role::kDecode}).bytes_read, 0);
}

TEST(CostTest, ExpertsCountOnlyTheDistinctExpertsThatAreHit) {
  const ops::ExpertWeight expert{weight_of(DType::kBF16, 8, 16), weight_of(DType::kBF16, 8, 16),
                                 weight_of(DType::kBF16, 16, 8)};
  const std::vector<ops::ExpertWeight> experts(6, expert);
  const std::array<int32_t, 4> ids{1, 5, 5, 1};
  const ops::Cost cost = ops::cost(ops::ExpertsArgs{
      .ids = ids.data(), .experts = experts, .shared = expert, .rows = 2, .top_k = 2});
  const double one = 3 * 8 * 16 * 2;
  EXPECT_EQ(cost.bytes_read, 3 * one + 2 * (16 + 2 * 2 + 1) * 4);
  EXPECT_EQ(cost.flops, 2.0 * (3 * 8 * 16) * (2 * 2 + 2));
}

TEST(CostTest, GdnReadsAndWritesTheMatrixOncePerSpanWithRows) {
  const ops::GdnShape shape{
      .key_heads = 1, .value_heads = 2, .key_dim = 4, .value_dim = 8, .conv_kernel = 4};
  const auto bytes = [&](std::vector<ops::RowSpan> spans, int rows) {
    return ops::cost(ops::GdnArgs{.shape = shape,
                                  .batch = {spans, rows, ops::Role::kDecode},
                                  .conv_ring = make_ring(0, 0, 3)});
  };
  const ops::Cost one = bytes({{.num_rows = 1, .position = 9}}, 1);
  const ops::Cost two = bytes({{.num_rows = 1, .position = 9}, {1, 1, 9, nullptr, nullptr}}, 2);
  const ops::Cost with_empty = bytes({{.num_rows = 1, .position = 9}, {.num_rows = 0}}, 1);
  const double matrix = 2 * 4 * 8 * 4, channels = 2 * 4 + 2 * 8;
  EXPECT_EQ(two.bytes_written - one.bytes_written, matrix + (16 + channels) * 4);
  EXPECT_EQ(two.bytes_read - one.bytes_read, matrix + (channels + 16 + 4) * 4 + 3 * channels * 4);
  EXPECT_EQ(with_empty.bytes_read, one.bytes_read);
  EXPECT_EQ(with_empty.bytes_written, one.bytes_written);
  EXPECT_EQ(ops::cost(ops::GdnArgs{}).flops, 0);
}

TEST(CostTest, SelectCostsNothingToScoreWhileBlocksFit) {
  const auto cost = [](int64_t position) {
    const ops::RowSpan span{.num_rows = 1, .position = position};
    return ops::cost(ops::QsaSelectArgs{.shape = kSmallQsa,
                                        .cache = {},
                                        .budget_blocks = 4,
                                        .batch = {{&span, 1}, 1, ops::Role::kDecode}});
  };
  EXPECT_EQ(cost(18).flops, 0);
  EXPECT_EQ(cost(18).bytes_read, 0);
  EXPECT_EQ(cost(19).flops, 2 * 4 * 16 * 5);
  EXPECT_EQ(cost(19).bytes_read, (4 * 16 + 5 * 16) * 4);
  EXPECT_EQ(cost(19).bytes_written, (4 + 1) * 4);
}

TEST(CostTest, AttendReadsATokenOnceHoweverManyRowsShareIt) {
  const std::array<int32_t, 4> blocks{0, 2, 0, 1};
  const std::array<int32_t, 2> counts{2, 2};
  const ops::RowSpan span{.num_rows = 2, .position = 12};
  const ops::Cost cost = ops::cost(ops::QsaAttendArgs{.shape = kSmallQsa,
                                                      .cache = {},
                                                      .blocks = blocks.data(),
                                                      .counts = counts.data(),
                                                      .budget_blocks = 2,
                                                      .batch = {{&span, 1}, 2, {}}});
  const double queries = 6 * 32, token = 2 * 32 * 2 * 4;
  EXPECT_EQ(cost.bytes_read, 2 * 2 * queries * 4 + (3 * 4 + 2) * token + 2 * 3 * 4);
  EXPECT_EQ(cost.flops, 4 * queries * ((8 + 1) + (8 + 2)));
}

TEST(CostTest, FrontWritesAnIndexKeyPerCompletedBlock) {
  const auto written = [](int64_t position) {
    const ops::RowSpan span{.num_rows = 1, .position = position};
    return ops::cost(ops::QsaFrontArgs{
                         .shape = kSmallQsa, .rope = {}, .cache = {}, .batch = {{&span, 1}, 1, {}}})
        .bytes_written;
  };
  EXPECT_EQ(written(3) - written(2), 16 * 4);
  EXPECT_EQ(written(4), written(2));
}

TEST(CostTest, DrawsMoveLogitsSettingsAndResults) {
  const ops::Cost cost = ops::cost(ops::DrawArgs{.vocab = 1001, .rows = 3});
  EXPECT_EQ(cost.bytes_read, 3 * (1001 * 4 + 64));
  EXPECT_EQ(cost.bytes_written, 3 * (5 * 4 + 20 * 8));
  EXPECT_EQ(ops::cost(ops::DrawArgs{.vocab = 1001}).bytes_read, 0);
}

TEST(CostTest, StepsOfARoundMoveAFewIntegersPerRow) {
  const auto accept = [](int rows, int spans, bool pending, int drafting) {
    return ops::cost(ops::AcceptArgs{
        .state = {.num_spans = spans, .num_rows = rows}, .pending = pending, .drafting = drafting});
  };
  EXPECT_EQ(accept(4, 1, false, 0).bytes_read - accept(3, 1, false, 0).bytes_read, 3 * 4);
  EXPECT_EQ(accept(4, 1, false, 0).bytes_written - accept(3, 1, false, 0).bytes_written, 4);
  EXPECT_EQ(accept(4, 2, true, 0).bytes_written - accept(4, 2, false, 0).bytes_written, 2 * 4);
  EXPECT_EQ(accept(4, 2, true, 1).bytes_written - accept(4, 2, true, 0).bytes_written, 8);
  const ops::Cost taken = ops::cost(ops::TakeDraftsArgs{.state = {}, .count = 2});
  EXPECT_EQ(taken.bytes_read, 2 * (2 * 4 + 2 * 8));
  EXPECT_EQ(taken.bytes_written, 2 * (6 * 4 + 2 * 8));
  const auto advance = [](int rows, int spans) {
    return ops::cost(ops::AdvanceArgs{.state = {.num_spans = spans, .num_rows = rows}});
  };
  EXPECT_EQ(advance(5, 1).bytes_written - advance(4, 1).bytes_written, 4 * 4 + 8);
  EXPECT_EQ(advance(4, 0).bytes_read, 0);
}

TEST(CostTest, CostsAddUp) {
  ops::Cost sum{1, 2, 3};
  sum += {10, 20, 30};
  EXPECT_EQ(sum.bytes_read, 11);
  EXPECT_EQ(sum.bytes_written, 22);
  EXPECT_EQ(sum.flops, 33);
}

}  // namespace
}  // namespace tessera::test
