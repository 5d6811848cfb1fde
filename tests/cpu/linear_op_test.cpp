// SPDX-License-Identifier: Apache-2.0
// Linear and embed: every weight type, odd sizes, misaligned pointers, bit equality of decode rows.
#include <array>

#include "cpu/op_fixture.h"

namespace tessera::test {
namespace {

struct Size {
  int in;
  int out;
};
/// The last ones have rows of whole memory lines: more than one scale block, uneven shares of K.
constexpr Size kSizes[] = {{1, 1},     {7, 3},    {64, 6},    {129, 131}, {257, 40},
                           {300, 257}, {1024, 1}, {256, 264}, {1408, 152}};

class LinearOpTest : public OpTest {
 protected:
  Values run(const Weight& weight, std::span<const float> x, int rows, ops::Role role) {
    const Values input(x);
    Values y(static_cast<size_t>(rows) * weight.outs());
    const std::array parts{ops::LinearPart{weight.view(), y.data()}};
    ops_->linear({.x = input.data(), .parts = parts, .rows = rows, .role = role});
    EXPECT_TRUE(y.guards_intact());
    return y;
  }
  void expect_product(const Values& y, std::span<const float> x, const Weight& weight, size_t rows,
                      ops::Role role) const;
  void expect_codes(size_t ins, float scale, ops::Role role);
};

/// Every output against its own absolute sum: cancellation is no excuse. An activation is rounded
/// once, at the end. A BF16 backend may round decoded weights on the prompt path.
void LinearOpTest::expect_product(const Values& y, std::span<const float> x, const Weight& weight,
                                  size_t rows, ops::Role role) const {
  const bool rounds_weights = role == ops::Role::kPrefill && weight.view().dtype == DType::kF8E4M3;
  const double tolerance =
      sum_tolerance(static_cast<double>(weight.ins())) + (rounds_weights ? rounding() : 0);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t out = 0; out < weight.outs(); ++out) {
      double sum = 0, absolute = 0;
      for (size_t in = 0; in < weight.ins(); ++in) {
        const double term = double{x[row * weight.ins() + in]} * weight.at(out, in);
        sum += term;
        absolute += std::abs(term);
      }
      const double got = double{y.row(row, weight.outs())[out]};
      ASSERT_LE(std::abs(got - sum), tolerance * absolute + rounding() * std::abs(sum))
          << "row " << row << " output " << out;
    }
  }
}

TEST_P(LinearOpTest, MatchesTheDefinition) {
  Random random(1);
  for (const DType dtype : kWeightTypes)
    for (const Size& size : kSizes) {
      const Weight weight(random, dtype, size.out, size.in);
      for (const int rows : kRowCounts)
        for (const ops::Role role : kRoles) {
          SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " [" << size.out << ", "
                                          << size.in << "] rows " << rows << role_name(role));
          const auto x = random.normals(static_cast<size_t>(rows * size.in));
          const Values y = run(weight, x, rows, role);
          ASSERT_NO_FATAL_FAILURE(expect_product(y, x, weight, static_cast<size_t>(rows), role));
        }
    }
}

TEST_P(LinearOpTest, KeepsLargeAndSmallValues) {
  Random random(2);
  constexpr int kIn = 130, kOut = 20, kRows = 3;
  for (const double scale : {1e25, 1e-25})
    for (const DType dtype : kWeightTypes)
      for (const ops::Role role : kRoles) {
        const Weight weight(random, dtype, kOut, kIn);
        const auto x = random.normals(kRows * kIn, scale);
        const Values y = run(weight, x, kRows, role);
        ASSERT_NO_FATAL_FAILURE(expect_product(y, x, weight, kRows, role));
      }
}

TEST_P(LinearOpTest, RunsSeveralWeightsOverTheSameRows) {
  Random random(3);
  constexpr int kRows = 4;
  for (const int ins : {140, 256}) {
    const Weight first(random, DType::kBF16, 9, ins), second(random, DType::kF8E4M3, 130, ins),
        third(random, DType::kF32, 1, ins), last(random, DType::kBF16, 300, ins);
    const std::array weights{&first, &second, &third, &last};
    for (const ops::Role role : kRoles) {
      const auto x = random.normals(static_cast<size_t>(kRows * ins));
      const Values input(x);
      std::vector<Values> ys;
      std::vector<ops::LinearPart> parts;
      ys.reserve(weights.size());
      for (const Weight* weight : weights) {
        ys.emplace_back(kRows * weight->outs());
        const bool logits = weight == &third || weight == &last;
        parts.push_back({weight->view(), ys.back().data(),
                         logits ? ops::Output::kFloat : ops::Output::kActivation});
      }
      ops_->linear({.x = input.data(), .parts = parts, .rows = kRows, .role = role});
      size_t part = 0;
      for (const Weight* weight : weights) {
        ASSERT_TRUE(ys[part].guards_intact());
        ASSERT_NO_FATAL_FAILURE(expect_product(ys[part++], x, *weight, kRows, role));
      }
    }
  }
}

TEST_P(LinearOpTest, EmptyLaunchWritesNothing) {
  Random random(4);
  const Weight weight(random, DType::kBF16, 5, 7);
  for (const ops::Role role : kRoles) {
    EXPECT_EQ(run(weight, {}, 0, role).size(), 0U);
    Values x(7);
    ops_->linear({.x = x.data(), .parts = {}, .rows = 1, .role = role});
    EXPECT_TRUE(x.guards_intact());
  }
}

TEST_P(LinearOpTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  constexpr int kRows = 70;
  Random random(5);
  for (const DType dtype : kWeightTypes)
    for (const Size& size : kSizes) {
      const Weight weight(random, dtype, size.out, size.in);
      const auto x = random.normals(static_cast<size_t>(kRows * size.in));
      const auto ins = static_cast<size_t>(size.in), outs = static_cast<size_t>(size.out);
      const Values all = run(weight, x, kRows, ops::Role::kDecode);
      const auto input = std::span<const float>(x);
      for (int rows = 1; rows <= 2 * kMaxDecodeRows; ++rows)
        for (size_t begin = 0; begin + static_cast<size_t>(rows) <= kRows; begin += 23) {
          const auto count = static_cast<size_t>(rows);
          const Values some =
              run(weight, input.subspan(begin * ins, count * ins), rows, ops::Role::kDecode);
          ASSERT_TRUE(same_bits(some.all(), all.all().subspan(begin * outs, count * outs)))
              << dtype_name(dtype) << " [" << size.out << ", " << size.in << "] rows " << rows;
        }
    }
}

TEST_P(LinearOpTest, PoisonedRowStaysAlone) {
  Random random(6);
  constexpr int kIn = 70, kOut = 33, kRows = 7, kPoisoned = 3;
  for (const DType dtype : kWeightTypes)
    for (const ops::Role role : kRoles) {
      const Weight weight(random, dtype, kOut, kIn);
      auto x = random.normals(kRows * kIn);
      const Values clean = run(weight, x, kRows, role);
      x[kPoisoned * kIn + 5] = std::numeric_limits<float>::quiet_NaN();
      const Values poisoned = run(weight, x, kRows, role);
      for (size_t row = 0; row < kRows; ++row) {
        if (row != kPoisoned)
          EXPECT_TRUE(same_bits(poisoned.row(row, kOut), clean.row(row, kOut))) << row;
        else
          for (const float value : poisoned.row(row, kOut)) EXPECT_TRUE(std::isnan(value));
      }
    }
}

/// Row `code` of the weight holds that E4M3 code in one column; one-hot inputs read it back alone.
void LinearOpTest::expect_codes(size_t ins, float scale, ops::Role role) {
  constexpr size_t kCodes = 256;
  const auto is_number = [](size_t code) { return !f8e4m3_is_nan(static_cast<int>(code)); };
  std::vector<uint8_t> data(kCodes * ins, 0);
  for (size_t code = 0; code < kCodes; ++code)
    if (is_number(code)) data[code * ins + code % ins] = static_cast<uint8_t>(code);
  const std::vector<float> scales(4, scale);
  std::vector<float> eye(ins * ins, 0.0F);
  for (size_t in = 0; in < ins; ++in) eye[in * ins + in] = 1;
  const Values x(eye);
  Values y(ins * kCodes);
  const ops::LinearPart part{.weight = {.data = data.data(),
                                        .dtype = DType::kF8E4M3,
                                        .scale = scales.data(),
                                        .out_features = kCodes,
                                        .in_features = static_cast<int>(ins)},
                             .y = y.data()};
  ops_->linear({.x = x.data(), .parts = {&part, 1}, .rows = static_cast<int>(ins), .role = role});
  for (size_t code = 0; code < kCodes; ++code)
    for (size_t row = 0; row < ins; ++row) {
      const bool holds_code = row == code % ins && is_number(code);
      const double want =
          holds_code ? f8e4m3_by_definition(static_cast<int>(code)) * double{scale} : 0;
      ASSERT_EQ(double{y.row(row, kCodes)[code]}, want) << "code " << code << " column " << row;
    }
}

TEST_P(LinearOpTest, DecodesEveryFp8Code) {
  for (const size_t ins : {size_t{150}, size_t{256}})
    for (const float scale : {1.0F, 0.75F, 0x1p-9F})
      for (const ops::Role role : kRoles) {
        SCOPED_TRACE(testing::Message() << ins << " columns, " << role_name(role));
        ASSERT_NO_FATAL_FAILURE(expect_codes(ins, scale, role));
      }
}

class EmbedOpTest : public OpTest {};

TEST_P(EmbedOpTest, CopiesTheRowIntoEveryBranch) {
  Random random(7);
  constexpr int kVocab = 37;
  for (const DType dtype : kWeightTypes)
    for (const int hidden : {1, 5, 64, 131})
      for (const int branches : {1, 4})
        for (const int rows : {0, 1, 3, 65}) {
          const Weight table(random, dtype, kVocab, hidden);
          std::vector<int32_t> ids;
          for (int row = 0; row < rows; ++row) ids.push_back(random.below(kVocab));
          if (rows > 1) ids[0] = kVocab - 1, ids[1] = 0;
          const auto width = static_cast<size_t>(hidden);
          Values wide(static_cast<size_t>(rows * branches) * width);
          ops_->embed({.ids = ids.data(),
                       .table = table.view(),
                       .wide = wide.data(),
                       .rows = rows,
                       .branches = branches});
          ASSERT_TRUE(wide.guards_intact());
          for (size_t copy = 0; copy < static_cast<size_t>(rows * branches); ++copy)
            for (size_t col = 0; col < width; ++col) {
              const auto id = static_cast<size_t>(ids[copy / static_cast<size_t>(branches)]);
              ASSERT_EQ(double{wide.row(copy, width)[col]},
                        stored(double{static_cast<float>(table.at(id, col))}));
            }
        }
}

INSTANTIATE_TEST_SUITE_P(Cpu, LinearOpTest, testing::ValuesIn(backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Cpu, EmbedOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
