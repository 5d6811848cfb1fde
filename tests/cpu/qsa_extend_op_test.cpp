// SPDX-License-Identifier: Apache-2.0
// Lists that go on from earlier ones: copied, extended where a block completes, in place or not.
#include <gtest/gtest.h>

#include "cpu/cpu_ops.h"

namespace tessera {
namespace {

constexpr int kBlock = 4, kFrom = 3, kStride = 5;

std::vector<int32_t> list_at(const std::vector<int32_t>& blocks, const std::vector<int32_t>& counts,
                             size_t row) {
  const auto begin = blocks.begin() + static_cast<ptrdiff_t>(row * kStride);
  return {begin, begin + counts[row]};
}

class QsaExtend : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<ops::Ops> ops_ = GetParam() ? cpu::make_fast_ops() : cpu::make_reference_ops();
};

TEST_P(QsaExtend, TakesTheListOfTheRowBeforeAndItsOwnBlock) {
  const std::vector<int32_t> from = {0, 2, 5, 7, -1, -1, 1, 3, 4};
  const std::vector<int32_t> from_counts = {3, 1, 3};
  const std::vector<int32_t> source = {0, 2};
  // Position 27 is the last of block 6; position 24 begins it.
  const std::vector<ops::RowSpan> spans = {{.row_begin = 0, .num_rows = 1, .position = 27},
                                           {.row_begin = 1, .num_rows = 1, .position = 24}};
  std::vector<int32_t> blocks(2 * kStride, -7), counts(2, -7);
  ops::QsaExtendArgs args{.block = kBlock,
                          .source_rows = source.data(),
                          .from_blocks = from.data(),
                          .from_counts = from_counts.data(),
                          .from_stride = kFrom,
                          .batch = {.spans = spans, .num_rows = 2, .role = ops::Role::kDecode},
                          .blocks = blocks.data(),
                          .counts = counts.data(),
                          .stride = kStride};
  ops_->qsa_extend(args);
  EXPECT_EQ(list_at(blocks, counts, 0), (std::vector<int32_t>{0, 2, 5, 6}));
  EXPECT_EQ(list_at(blocks, counts, 1), (std::vector<int32_t>{1, 3, 4}));
  EXPECT_EQ(blocks[4], -7);
  EXPECT_EQ(blocks[8], -7);

  // In place, the first sequence has left.
  const std::vector<int32_t> second = {1};
  const std::vector<ops::RowSpan> last = {{.row_begin = 0, .num_rows = 1, .position = 31}};
  args.source_rows = second.data();
  args.from_blocks = blocks.data();
  args.from_counts = counts.data();
  args.from_stride = kStride;
  args.batch = {.spans = last, .num_rows = 1, .role = ops::Role::kDecode};
  ops_->qsa_extend(args);
  EXPECT_EQ(list_at(blocks, counts, 0), (std::vector<int32_t>{1, 3, 4, 7}));
}

INSTANTIATE_TEST_SUITE_P(Backends, QsaExtend, testing::Bool(),
                         [](const auto& variant) { return variant.param ? "fast" : "reference"; });

}  // namespace
}  // namespace tessera
