// SPDX-License-Identifier: Apache-2.0
// Gated Residual: mixer and combine against their formulas in double.
#include "cpu/op_fixture.h"

namespace tessera::test {
namespace {

struct Shape {
  int branches;
  int hidden;
  int rank;
};
/// The last one is that of a small model, for which a device may have a kernel of its own.
constexpr Shape kShapes[] = {{1, 3, 1}, {4, 16, 5}, {3, 33, 24}, {4, 65, 40}, {4, 128, 32}};
constexpr double kMixedRoundings = 2;    // the output, and what N's roundings leave in the gates
constexpr double kInjectRoundings = 1;   // N is rounded, the logits are not
constexpr double kCombineRoundings = 1;  // the branches; the same for N, which reads them rounded
constexpr int kGroup = 4;  // rows between the starts of the launches compared bit by bit

/// Parameters and rows of one mixer.
struct Case {
  Case(Random& random, const Shape& mixer_shape, DType dtype, int num_rows)
      : shape(mixer_shape),
        rows(static_cast<size_t>(num_rows)),
        wide(static_cast<size_t>(shape.branches * shape.hidden)),
        hidden(static_cast<size_t>(shape.hidden)),
        branches(static_cast<size_t>(shape.branches)),
        norm(random.normals(wide, 0.3)),
        down(random, dtype, shape.rank, shape.branches * shape.hidden),
        up(random, dtype, shape.branches * shape.hidden, shape.rank),
        inject(random, dtype, shape.branches, shape.branches * shape.hidden),
        residual(random.normals(rows * wide, 2)) {}

  Shape shape;
  size_t rows, wide, hidden, branches;
  Values norm;
  Weight down, up, inject;
  std::vector<float> residual;
};

struct Mixed {
  Values mixed;
  Values inject;
};

Mixed run(ops::Ops& backend, const Case& data, size_t first, size_t rows, bool final_mixer,
          ops::Role role, const float* normed = nullptr) {
  Mixed out{Values(rows * data.hidden), Values(rows * data.branches)};
  const Values input(
      std::span<const float>(data.residual).subspan(first * data.wide, rows * data.wide));
  ops::MixerArgs args{
      .wide = input.data(),
      .normed = normed,
      .weights = {data.norm.data(), data.down.view(), data.up.view(), data.inject.view()},
      .mixed = out.mixed.data(),
      .inject = out.inject.data(),
      .rows = static_cast<int>(rows),
      .branches = data.shape.branches,
      .hidden = data.shape.hidden,
      .eps = kEps,
      .role = role};
  if (final_mixer) args.inject = nullptr, args.weights.inject = {};
  backend.mixer(args);
  EXPECT_TRUE(out.mixed.guards_intact());
  EXPECT_TRUE(out.inject.guards_intact());
  return out;
}

class MixerOpTest : public OpTest {
 protected:
  void expect_row(const Case& data, const Mixed& got, size_t row, bool final_mixer) const;
};

/// Formula of one row; N and the low-rank row are rounded as activations are.
void MixerOpTest::expect_row(const Case& data, const Mixed& got, size_t row,
                             bool final_mixer) const {
  const auto branches = static_cast<double>(data.branches);
  const auto residual = std::span<const float>(data.residual).subspan(row * data.wide, data.wide);
  std::vector<double> normed;
  for (size_t start = 0; start < data.wide; start += data.hidden) {
    const auto part = rms_by_definition(to_double(residual.subspan(start, data.hidden)),
                                        data.norm.all().subspan(start, data.hidden), double{kEps});
    normed.insert(normed.end(), part.begin(), part.end());
  }
  normed = stored(normed);
  auto low = product_by_definition(normed, data.down);
  for (double& value : low) value = stored(silu(value / branches));
  const auto gate = product_by_definition(low, data.up);
  std::vector<double> mixed(data.hidden, 0.0);
  for (size_t col = 0; col < data.wide; ++col)
    mixed[col % data.hidden] += sigmoid(gate[col]) * normed[col] / branches;
  auto inject = product_by_definition(normed, data.inject);
  for (double& value : inject) value /= branches;

  const double exact = 4 * sum_tolerance(static_cast<double>(data.wide));
  ASSERT_TRUE(close(got.mixed.row(row, data.hidden), to_float(mixed),
                    tolerance(exact, kMixedRoundings), 1.0));
  if (!final_mixer) {
    const double typical = std::sqrt(static_cast<double>(data.wide)) / branches;
    ASSERT_TRUE(close(got.inject.row(row, data.branches), to_float(inject),
                      tolerance(exact, kInjectRoundings), typical));
  }
}

TEST_P(MixerOpTest, MatchesTheFormula) {
  Random random(11);
  for (const Shape& shape : kShapes)
    for (const DType dtype : kWeightTypes)
      for (const int rows : kRowCounts)
        for (const ops::Role role : kRoles)
          for (const bool final_mixer : {false, true}) {
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " hidden " << shape.hidden
                                            << " rows " << rows << " " << role_name(role));
            const Case data(random, shape, dtype, rows);
            const Mixed got = run(*ops_, data, 0, data.rows, final_mixer, role);
            for (size_t row = 0; row < data.rows; ++row)
              ASSERT_NO_FATAL_FAILURE(expect_row(data, got, row, final_mixer));
          }
}

/// N may come from a combine; here of rows that an output of zeros leaves as they are.
TEST_P(MixerOpTest, TakesRowsThatAreNormedAlready) {
  if (!ops_->traits().combine_norms) return;
  Random random(17);
  for (const Shape& shape : kShapes)
    for (const ops::Role role : kRoles) {
      const Case data(random, shape, DType::kBF16, 37);
      Values wide(data.residual), normed(data.rows * data.wide);
      const Values out(std::vector<float>(data.rows * data.hidden));
      const Values inject(std::vector<float>(data.rows * data.branches));
      ops_->combine({.wide = wide.data(),
                     .out = out.data(),
                     .inject = inject.data(),
                     .next_norm = data.norm.data(),
                     .normed = normed.data(),
                     .eps = kEps,
                     .rows = static_cast<int>(data.rows),
                     .branches = shape.branches,
                     .hidden = shape.hidden});
      const Mixed got = run(*ops_, data, 0, data.rows, false, role, normed.data());
      for (size_t row = 0; row < data.rows; ++row)
        ASSERT_NO_FATAL_FAILURE(expect_row(data, got, row, false));
    }
}

TEST_P(MixerOpTest, EmptyLaunchWritesNothing) {
  Random random(12);
  const Case data(random, kShapes[1], DType::kBF16, 1);
  for (const ops::Role role : kRoles) run(*ops_, data, 0, 0, false, role);
}

TEST_P(MixerOpTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  Random random(13);
  for (const Shape& shape : kShapes)
    for (const DType dtype : kWeightTypes) {
      const Case data(random, shape, dtype, 21);
      const Mixed all = run(*ops_, data, 0, data.rows, false, ops::Role::kDecode);
      for (size_t rows = 1; rows <= kMaxDecodeRows; ++rows)
        for (size_t first = 0; first + rows <= data.rows; first += kGroup) {
          const Mixed some = run(*ops_, data, first, rows, false, ops::Role::kDecode);
          ASSERT_TRUE(same_bits(some.mixed.all(),
                                all.mixed.all().subspan(first * data.hidden, rows * data.hidden)));
          ASSERT_TRUE(same_bits(some.inject.all(), all.inject.all().subspan(first * data.branches,
                                                                            rows * data.branches)));
        }
    }
}

TEST_P(MixerOpTest, ZeroAndHugeRowsStayFinite) {
  Random random(14);
  for (const double scale : {0.0, 1e-15, 1e15})
    for (const ops::Role role : kRoles) {
      Case data(random, kShapes[1], DType::kBF16, 2);
      for (float& value : data.residual) value = as_bf16(static_cast<float>(double{value} * scale));
      const Mixed got = run(*ops_, data, 0, data.rows, false, role);
      for (size_t row = 0; row < data.rows; ++row)
        ASSERT_NO_FATAL_FAILURE(expect_row(data, got, row, false));
    }
}

TEST_P(MixerOpTest, CombineAddsGatedOutputToEveryBranch) {
  Random random(15);
  for (const Shape& shape : kShapes)
    for (const int rows : {0, 1, 3, 65})
      for (const double spread : {1.0, 200.0}) {
        const auto count = static_cast<size_t>(rows), hidden = static_cast<size_t>(shape.hidden),
                   branches = static_cast<size_t>(shape.branches);
        const Values before(random.normals(count * branches * hidden));
        const Values out(random.normals(count * hidden));
        const Values inject(random.normals(count * branches, spread));
        Values wide(before.all());
        ops_->combine({.wide = wide.data(),
                       .out = out.data(),
                       .inject = inject.data(),
                       .rows = rows,
                       .branches = shape.branches,
                       .hidden = shape.hidden});
        ASSERT_TRUE(wide.guards_intact());
        Values want(before.all());
        for (size_t index = 0; index < want.size(); ++index) {
          const size_t branch_row = index / hidden, row = branch_row / branches;
          want.data()[index] = static_cast<float>(
              double{before.all()[index]} + 2 * sigmoid(double{inject.all()[branch_row]}) *
                                                double{out.all()[row * hidden + index % hidden]});
        }
        ASSERT_TRUE(close(wide.all(), want.all(), tolerance(sum_tolerance(2), kCombineRoundings)));
      }
}

/// Backends that say so write the next mixer's N as well, from the branches as they are stored.
TEST_P(MixerOpTest, CombineNormsWhatItStored) {
  if (!ops_->traits().combine_norms) return;
  Random random(16);
  for (const Shape& shape : kShapes)
    for (const int rows : {0, 1, 3, 65}) {
      const auto count = static_cast<size_t>(rows), hidden = static_cast<size_t>(shape.hidden),
                 branches = static_cast<size_t>(shape.branches);
      const Values out(random.normals(count * hidden));
      const Values inject(random.normals(count * branches));
      const Values norm(random.normals(branches * hidden, 0.3));
      Values wide(random.normals(count * branches * hidden));
      Values normed(count * branches * hidden);
      ops_->combine({.wide = wide.data(),
                     .out = out.data(),
                     .inject = inject.data(),
                     .next_norm = norm.data(),
                     .normed = normed.data(),
                     .eps = kEps,
                     .rows = rows,
                     .branches = shape.branches,
                     .hidden = shape.hidden});
      ASSERT_TRUE(wide.guards_intact() && normed.guards_intact());
      for (size_t branch_row = 0; branch_row < count * branches; ++branch_row) {
        const auto want = rms_by_definition(
            to_double(wide.row(branch_row, hidden)),
            norm.all().subspan(branch_row % branches * hidden, hidden), double{kEps});
        ASSERT_TRUE(
            close(normed.row(branch_row, hidden), to_float(want),
                  tolerance(sum_tolerance(static_cast<double>(hidden)), kCombineRoundings)));
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, MixerOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
