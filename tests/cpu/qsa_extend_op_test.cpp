// SPDX-License-Identifier: Apache-2.0
// Lists that go on from earlier ones: copied, extended where a block completes, in place or not.
#include <algorithm>

#include "cpu/op_fixture.h"

namespace tessera::test {
namespace {

constexpr int kBlock = 4;
constexpr int32_t kUntouched = -7;

/// Lists of a launch as they lie in memory.
struct Lists {
  Lists(size_t rows, int entries)
      : stride(entries),
        blocks(rows * static_cast<size_t>(entries), kUntouched),
        counts(rows, kUntouched) {}

  void set(size_t row, const std::vector<int32_t>& list) {
    std::ranges::copy(list, blocks.begin() + begin_of(row));
    counts[row] = static_cast<int32_t>(list.size());
  }
  std::vector<int32_t> at(size_t row) const {
    const auto begin = blocks.begin() + begin_of(row);
    return {begin, begin + counts[row]};
  }
  ptrdiff_t begin_of(size_t row) const { return static_cast<ptrdiff_t>(row) * stride; }
  bool operator==(const Lists&) const = default;

  int stride;
  std::vector<int32_t> blocks, counts;
};

/// Rows at `positions` that follow rows `source` of `from`.
struct Rows {
  std::vector<int32_t> source{};
  std::vector<int64_t> positions{};
};

void extend(ops::Ops& backend, const Rows& rows, const Lists& from, Lists& to) {
  std::vector<ops::RowSpan> spans;
  for (const int64_t position : rows.positions)
    spans.push_back(
        {.row_begin = static_cast<int>(spans.size()), .num_rows = 1, .position = position});
  backend.qsa_extend({.block = kBlock,
                      .source_rows = rows.source.data(),
                      .from_blocks = from.blocks.data(),
                      .from_counts = from.counts.data(),
                      .from_stride = from.stride,
                      .batch = {.spans = spans,
                                .num_rows = static_cast<int>(spans.size()),
                                .role = ops::Role::kDecode},
                      .blocks = to.blocks.data(),
                      .counts = to.counts.data(),
                      .stride = to.stride});
}

/// The same by definition: what no list reaches keeps what was there.
void extend_by_definition(const Rows& rows, const Lists& from, Lists& to) {
  for (size_t row = 0; row < rows.source.size(); ++row) {
    std::vector<int32_t> list = from.at(static_cast<size_t>(rows.source[row]));
    const int64_t seen = rows.positions[row] + 1;
    if (seen % kBlock == 0) list.push_back(static_cast<int32_t>(seen / kBlock - 1));
    to.set(row, list);
  }
}

class QsaExtendOpTest : public OpTest {
 protected:
  void SetUp() override {
    OpTest::SetUp();
    if (ops_ != nullptr && !ops_->traits().drafts) GTEST_SKIP() << "no draft layer here";
  }

  /// Any counts, 0 and `most` among them, of ids that ascend in steps of 1 to 3.
  void fill(Lists& lists, int most) {
    for (size_t row = 0; row < lists.counts.size(); ++row) {
      std::vector<int32_t> list(static_cast<size_t>(row % 5 == 0 ? most : random_.below(most + 1)));
      int32_t id = 0;
      for (int32_t& entry : list) entry = id += 1 + random_.below(3);
      lists.set(row, list);
    }
  }
  /// Positions behind every list, whether they complete a block or not.
  std::vector<int64_t> positions(size_t rows) {
    constexpr int64_t kFirst = 100000;
    std::vector<int64_t> positions;
    for (size_t row = 0; row < rows; ++row) positions.push_back(kFirst + random_.below(1000));
    return positions;
  }

  Random random_{83};
};

TEST_P(QsaExtendOpTest, TakesTheListOfTheRowBeforeAndItsOwnBlock) {
  Lists from(3, 3), to(2, 5);
  from.set(0, {0, 2, 5});
  from.set(1, {7});
  from.set(2, {1, 3, 4});
  // Position 27 is the last of block 6; position 24 begins it.
  extend(*ops_, {.source = {0, 2}, .positions = {27, 24}}, from, to);
  EXPECT_EQ(to.at(0), (std::vector<int32_t>{0, 2, 5, 6}));
  EXPECT_EQ(to.at(1), (std::vector<int32_t>{1, 3, 4}));
  // In place, the first sequence has left.
  extend(*ops_, {.source = {1}, .positions = {31}}, to, to);
  EXPECT_EQ(to.at(0), (std::vector<int32_t>{1, 3, 4, 7}));
}

/// Around the rows and columns that a device handles together; 2000 are more than it has threads.
TEST_P(QsaExtendOpTest, AnyRowsFromAnyRows) {
  for (const int most : {1, 3, 31, 32, 512, 2000})
    for (const int rows : sized<std::vector<int>>({1, 2, 7, 8, 9, 17, 64}, {1, 9})) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << most);
      const auto count = static_cast<size_t>(rows);
      Lists from(count + 3, most), to(count + 1, most + 2);
      fill(from, most);
      Rows work{.positions = positions(count)};
      for (int row = 0; row < rows; ++row) work.source.push_back(random_.below(rows + 3));
      Lists want = to;
      extend_by_definition(work, from, want);
      extend(*ops_, work, from, to);
      ASSERT_TRUE(to == want);
    }
}

/// A chain whose sequences leave one after the other: lists move to the front.
TEST_P(QsaExtendOpTest, InPlaceListsMoveToTheFront) {
  constexpr int kSteps = 4;
  for (const int most : {3, 512, 1030})
    for (const int rows : sized<std::vector<int>>({1, 5, 8, 21, 64}, {9})) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << most);
      auto count = static_cast<size_t>(rows);
      Lists lists(count, most + kSteps);
      fill(lists, most);
      Lists want = lists;
      for (int step = 0; step < kSteps && count > 0; ++step) {
        Rows work;
        for (size_t row = 0; row < count; ++row)
          if (count == 1 || random_.below(4) != 0) work.source.push_back(static_cast<int32_t>(row));
        count = work.source.size();
        work.positions = positions(count);
        extend_by_definition(work, want, want);
        extend(*ops_, work, lists, lists);
        ASSERT_TRUE(lists == want) << "step " << step;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, QsaExtendOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
