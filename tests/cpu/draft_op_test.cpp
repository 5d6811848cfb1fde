// SPDX-License-Identifier: Apache-2.0
// The draft layer's input against its formula in double: one mean over all branches, rows gathered,
// and the sum that `combine` makes of it.
#include "cpu/op_fixture.h"

namespace tessera::test {
namespace {

constexpr int kVocab = 19;
constexpr int kSourceRows = 9;
constexpr double kNormRoundings = 1;  // the output

struct Shape {
  int branches;
  int hidden;
};
constexpr Shape kShapes[] = {{1, 3}, {4, 16}, {3, 33}, {4, 128}};

class DraftInputOpTest : public OpTest {
 protected:
  void SetUp() override {
    OpTest::SetUp();
    if (ops_ != nullptr && !ops_->traits().drafts) GTEST_SKIP() << "no draft layer here";
  }
};

/// Parameters and rows of one launch.
struct Case {
  Case(Random& random, const Shape& sizes, DType dtype, int num_rows)
      : shape(sizes),
        rows(static_cast<size_t>(num_rows)),
        hidden(static_cast<size_t>(shape.hidden)),
        wide(static_cast<size_t>(shape.branches) * hidden),
        table(random, dtype, kVocab, shape.hidden),
        norm_embedding(random.normals(hidden, 0.3)),
        norm_hidden(random.normals(wide, 0.3)),
        source(random.normals(kSourceRows * wide, 2)),
        embedded(rows * hidden),
        normed(rows * wide),
        inject(rows * static_cast<size_t>(shape.branches)) {
    // Branches of very different size: a mean per branch would show.
    for (size_t at = 0; at < source.size(); ++at)
      source.data()[at] =
          as_bf16(source.data()[at] * static_cast<float>(1 + 3 * (at / hidden % 4)));
    for (size_t row = 0; row < rows; ++row) {
      ids.push_back(random.below(kVocab));
      wide_rows.push_back(random.below(kSourceRows));
    }
  }
  void run(ops::Ops& backend, size_t first, size_t count) {
    backend.draft_input({.ids = ids.data() + first,
                         .table = table.view(),
                         .wide = source.data(),
                         .wide_rows = wide_rows.data() + first,
                         .norm_embedding = norm_embedding.data(),
                         .norm_hidden = norm_hidden.data(),
                         .eps = kEps,
                         .rows = static_cast<int>(count),
                         .branches = shape.branches,
                         .embedded = embedded.data() + first * hidden,
                         .normed = normed.data() + first * wide,
                         .inject = inject.data() + first * static_cast<size_t>(shape.branches)});
    EXPECT_TRUE(embedded.guards_intact() && normed.guards_intact() && inject.guards_intact());
  }

  Shape shape;
  size_t rows, hidden, wide;
  Weight table;
  Values norm_embedding, norm_hidden, source;
  std::vector<int32_t> ids{}, wide_rows{};
  Values embedded, normed, inject;
};

TEST_P(DraftInputOpTest, MatchesTheFormula) {
  Random random(71);
  for (const Shape& shape : kShapes)
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int rows : kRowCounts) {
        SCOPED_TRACE(testing::Message()
                     << dtype_name(dtype) << " hidden " << shape.hidden << " rows " << rows);
        Case data(random, shape, dtype, rows);
        data.run(*ops_, 0, data.rows);
        const double exact = 4 * sum_tolerance(static_cast<double>(data.wide));
        for (size_t row = 0; row < data.rows; ++row) {
          std::vector<double> token;
          for (size_t col = 0; col < data.hidden; ++col)
            token.push_back(data.table.at(static_cast<size_t>(data.ids[row]), col));
          const auto source = data.source.row(static_cast<size_t>(data.wide_rows[row]), data.wide);
          const auto embedded = rms_by_definition(token, data.norm_embedding.all(), double{kEps});
          const auto normed =
              rms_by_definition(to_double(source), data.norm_hidden.all(), double{kEps});
          ASSERT_TRUE(close(data.embedded.row(row, data.hidden), to_float(embedded),
                            tolerance(exact, kNormRoundings), 1.0));
          ASSERT_TRUE(close(data.normed.row(row, data.wide), to_float(normed),
                            tolerance(exact, kNormRoundings), 1.0));
        }
        for (const float logit : data.inject.all()) ASSERT_EQ(logit, 0.0F);
      }
}

TEST_P(DraftInputOpTest, RowsDoNotDependOnTheLaunch) {
  Random random(72);
  for (const Shape& shape : kShapes) {
    Case together(random, shape, DType::kBF16, 17);
    together.run(*ops_, 0, together.rows);
    const std::vector<float> embedded(together.embedded.all().begin(),
                                      together.embedded.all().end());
    const std::vector<float> normed(together.normed.all().begin(), together.normed.all().end());
    for (size_t row = 0; row < together.rows; ++row) together.run(*ops_, row, 1);
    EXPECT_TRUE(same_bits(together.embedded.all(), embedded));
    EXPECT_TRUE(same_bits(together.normed.all(), normed));
  }
}

/// The zeros that the op writes make `combine` a plain sum, without a rounding of its own.
TEST_P(DraftInputOpTest, CombineAddsTheTwoProducts) {
  Random random(73);
  for (const Shape& shape : kShapes) {
    Case data(random, shape, DType::kBF16, 5);
    data.run(*ops_, 0, data.rows);
    Values wide(random.normals(data.rows * data.wide));
    const std::vector<float> before(wide.all().begin(), wide.all().end());
    const Values token(random.normals(data.rows * data.hidden));
    ops_->combine({.wide = wide.data(),
                   .out = token.data(),
                   .inject = data.inject.data(),
                   .eps = kEps,
                   .rows = static_cast<int>(data.rows),
                   .branches = shape.branches,
                   .hidden = shape.hidden});
    for (size_t at = 0; at < before.size(); ++at) {
      const size_t row = at / data.wide;
      const float sum = before[at] + token.all()[row * data.hidden + at % data.hidden];
      ASSERT_EQ(wide.all()[at], static_cast<float>(stored(double{sum})));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, DraftInputOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
