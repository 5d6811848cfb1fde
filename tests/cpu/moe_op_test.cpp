// SPDX-License-Identifier: Apache-2.0
// Router and experts by definition: ties, NaN, every weight type, fixed combination order.
#include <algorithm>
#include <numeric>

#include "cpu/op_fixture.h"

namespace tessera::test {
namespace {

constexpr double kRouterRoundings = 1;   // the weights
constexpr double kExpertRoundings = 4;   // silu(gate) * up, each expert's result, the sum
constexpr double kCombineRoundings = 2;  // the result, then the branches

struct Routed {
  std::vector<int32_t> ids;
  Values weights;
};

class RouterOpTest : public OpTest {
 protected:
  /// Plants exact logits, [rows, num_experts]: row r of x is the unit vector r, column r of the
  /// gate holds its logits. A NaN needs a launch of its own: 0 * NaN reaches every row.
  Routed run(std::span<const float> logits, int rows, int num_experts, int top_k,
             bool normalize = true, ops::Role role = ops::Role::kPrefill) {
    const auto count = static_cast<size_t>(rows), experts = static_cast<size_t>(num_experts);
    const size_t hidden = std::max<size_t>(1, count);
    std::vector<float> x(count * hidden, 0.0F), gate(experts * hidden, 0.0F);
    for (size_t row = 0; row < count; ++row) {
      x[row * hidden + row] = 1;
      for (size_t expert = 0; expert < experts; ++expert)
        gate[expert * hidden + row] = logits[row * experts + expert];
    }
    return run(x, gate, rows, num_experts, top_k, normalize, role);
  }

  Routed run(std::span<const float> x, std::span<const float> gate, int rows, int num_experts,
             int top_k, bool normalize, ops::Role role);

  void expect_row(std::span<const float> logits, std::span<const int32_t> ids,
                  std::span<const float> weights, bool normalize) const;
};

Routed RouterOpTest::run(std::span<const float> x, std::span<const float> gate, int rows,
                         int num_experts, int top_k, bool normalize, ops::Role role) {
  const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(top_k);
  const size_t hidden = gate.size() / static_cast<size_t>(num_experts);
  const Values input(x), stored_gate(gate);
  Values shared_gate(hidden), logits(static_cast<size_t>(rows * num_experts)),
      shared(static_cast<size_t>(rows));
  for (size_t col = 0; col < hidden; ++col)
    shared_gate.data()[col] = static_cast<float>(col) + 0.5F;
  const auto weight = [hidden](const Values& values, int outs) {
    return ops::LinearWeight{.data = values.data(),
                             .dtype = DType::kF32,
                             .out_features = outs,
                             .in_features = static_cast<int>(hidden)};
  };
  Routed out{std::vector<int32_t>(count, -1), Values(count)};
  ops_->router({.x = input.data(),
                .gate = weight(stored_gate, num_experts),
                .shared_gate = weight(shared_gate, 1),
                .logits = logits.data(),
                .shared_logit = shared.data(),
                .ids = out.ids.data(),
                .weights = out.weights.data(),
                .rows = rows,
                .num_experts = num_experts,
                .top_k = top_k,
                .normalize = normalize,
                .role = role});
  for (const Values* written : {&logits, &shared, &out.weights})
    EXPECT_TRUE(written->guards_intact());
  for (size_t row = 0; row < shared.size(); ++row) {
    double want = 0;
    for (size_t col = 0; col < hidden; ++col)
      want += double{x[row * hidden + col]} * double{shared_gate.all()[col]};
    if (!std::isnan(want)) {
      EXPECT_EQ(double{shared.all()[row]}, want);
    }
  }
  return out;
}

/// Ids by (logit descending, id ascending), weights by softmax in double, rounded as activations.
void RouterOpTest::expect_row(std::span<const float> logits, std::span<const int32_t> ids,
                              std::span<const float> weights, bool normalize) const {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t left, int32_t right) {
    return logits[static_cast<size_t>(left)] > logits[static_cast<size_t>(right)];
  });
  const double top = double{*std::max_element(logits.begin(), logits.end())};
  double total = 0, chosen = 0;
  std::vector<double> want;
  for (const float logit : logits) total += std::exp(double{logit} - top);
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    ASSERT_EQ(ids[slot], order[slot]) << "slot " << slot;
    want.push_back(std::exp(double{logits[static_cast<size_t>(ids[slot])]} - top) / total);
    chosen += want.back();
  }
  if (normalize)
    for (double& weight : want) weight /= chosen;
  ASSERT_TRUE(
      close(weights, to_float(want),
            tolerance(sum_tolerance(static_cast<double>(logits.size())), kRouterRoundings)));
}

struct RouterShape {
  int experts;
  int top_k;
};

TEST_P(RouterOpTest, MatchesTheDefinition) {
  Random random(41);
  for (const RouterShape& shape : {RouterShape{1, 1}, {3, 2}, {16, 4}, {17, 17}, {512, 10}})
    for (const int rows : {0, 1, 2, 3, 65})
      for (const bool normalize : {true, false})
        for (const double spread : {1e-3, 1.0, 20.0}) {
          const auto experts = static_cast<size_t>(shape.experts);
          const auto top_k = static_cast<size_t>(shape.top_k);
          const auto logits = random.normals(static_cast<size_t>(rows) * experts, spread);
          for (const ops::Role role : kRoles) {
            const Routed got = run(logits, rows, shape.experts, shape.top_k, normalize, role);
            for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
              ASSERT_NO_FATAL_FAILURE(expect_row(std::span(logits).subspan(row * experts, experts),
                                                 std::span(got.ids).subspan(row * top_k, top_k),
                                                 got.weights.row(row, top_k), normalize))
                  << shape.experts << " experts, spread " << spread << " " << role_name(role);
          }
        }
}

TEST_P(RouterOpTest, TiesGoToTheLowerId) {
  constexpr int kExperts = 40, kTopK = 10;
  const std::vector<float> equal(kExperts, 0.25F);
  ASSERT_NO_FATAL_FAILURE(
      expect_row(equal, run(equal, 1, kExperts, kTopK).ids, std::vector<float>(kTopK, 0.1F), true));
  std::vector<float> signed_zeros(kExperts, 0.0F);
  for (size_t expert = 0; expert < kExperts; expert += 3) signed_zeros[expert] = -0.0F;
  signed_zeros[37] = 1;
  const std::vector<int32_t> want{37, 0, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(run(signed_zeros, 1, kExperts, kTopK).ids, want);
  Random random(42);
  std::vector<float> coarse(kExperts);
  for (float& logit : coarse) logit = static_cast<float>(random.below(4));
  const Routed got = run(coarse, 1, kExperts, kTopK);
  ASSERT_NO_FATAL_FAILURE(expect_row(coarse, got.ids, got.weights.all(), true));
}

TEST_P(RouterOpTest, LogitsOfAnySizeGiveFiniteWeights) {
  constexpr int kExperts = 12, kTopK = 3;
  std::vector<float> logits(kExperts, -3e38F);
  logits[7] = 3e38F;
  logits[2] = 80;
  const Routed got = run(logits, 1, kExperts, kTopK);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{7, 2, 0}));
  EXPECT_EQ(got.weights.all()[0], 1.0F);
  EXPECT_EQ(got.weights.all()[1], 0.0F);
  EXPECT_EQ(got.weights.all()[2], 0.0F);
}

TEST_P(RouterOpTest, NanRanksLastAndStaysVisible) {
  constexpr int kExperts = 20, kTopK = 5;
  Random random(43);
  for (const int poisoned : {1, 17, kExperts})
    for (const ops::Role role : kRoles) {
      auto logits = random.normals(kExperts);
      std::fill_n(logits.begin(), poisoned, std::numeric_limits<float>::quiet_NaN());
      const Routed got = run(logits, 1, kExperts, kTopK, true, role);
      std::vector<int32_t> order(kExperts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t left, int32_t right) {
        const float first = logits[static_cast<size_t>(left)];
        const float second = logits[static_cast<size_t>(right)];
        return first > second || (std::isnan(second) && !std::isnan(first));
      });
      for (size_t slot = 0; slot < kTopK; ++slot)
        EXPECT_EQ(got.ids[slot], order[slot]) << poisoned << " NaN logits";
      const auto weights = got.weights.all();
      EXPECT_TRUE(
          std::any_of(weights.begin(), weights.end(), [](float w) { return std::isnan(w); }))
          << poisoned << " NaN logits vanished";
    }
}

TEST_P(RouterOpTest, PoisonedRowStaysAlone) {
  constexpr int kExperts = 20, kTopK = 5, kRows = 3, kHidden = 9;
  Random random(49);
  const auto gate = random.normals(kExperts * kHidden);
  auto x = random.normals(kRows * kHidden);
  for (float& value : x) value = std::round(value);  // the shared logit is exact
  for (const ops::Role role : kRoles) {
    const Routed want = run(x, gate, kRows, kExperts, kTopK, true, role);
    auto poisoned = x;
    poisoned[kHidden + 4] = std::numeric_limits<float>::quiet_NaN();
    const Routed got = run(poisoned, gate, kRows, kExperts, kTopK, true, role);
    for (const size_t row : {size_t{0}, size_t{2}})
      EXPECT_TRUE(same_bits(got.weights.row(row, kTopK), want.weights.row(row, kTopK)));
    EXPECT_TRUE(std::isnan(got.weights.row(1, kTopK)[0]));
    EXPECT_EQ(got.ids[kTopK], 0) << "every logit is NaN: the lowest ids come first";
  }
}

TEST_P(RouterOpTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  constexpr int kExperts = 33, kTopK = 4, kHidden = 70;
  constexpr size_t kRows = 24;
  Random random(50);
  const auto gate = random.normals(kExperts * kHidden, 0.2);
  auto x = random.normals(kRows * kHidden);
  for (float& value : x) value = std::round(value);
  const Routed all = run(x, gate, kRows, kExperts, kTopK, true, ops::Role::kDecode);
  for (size_t rows = 1; rows <= kMaxDecodeRows; ++rows)
    for (size_t first = 0; first + rows <= kRows; first += rows) {
      const Routed some = run(std::span(x).subspan(first * kHidden, rows * kHidden), gate,
                              static_cast<int>(rows), kExperts, kTopK, true, ops::Role::kDecode);
      for (size_t slot = 0; slot < rows * kTopK; ++slot)
        ASSERT_EQ(some.ids[slot], all.ids[first * kTopK + slot]);
      ASSERT_TRUE(
          same_bits(some.weights.all(), all.weights.all().subspan(first * kTopK, rows * kTopK)));
    }
}

struct ExpertShape {
  int hidden;
  int width;
  int shared_width;
  int experts;
  int top_k;
};

class ExpertsCase {
 public:
  ExpertsCase(Random& random, const ExpertShape& shape, DType routed, DType shared, int num_rows)
      : shape_(shape),
        rows_(static_cast<size_t>(num_rows)),
        hidden_(static_cast<size_t>(shape.hidden)),
        top_k_(static_cast<size_t>(shape.top_k)),
        x_(random.normals(rows_ * hidden_)),
        routing_(random.normals(rows_ * top_k_, 0.3)),
        shared_logit_(random.normals(rows_, 2)) {
    for (int expert = 0; expert <= shape.experts; ++expert) {
      const bool is_shared = expert == shape.experts;
      const DType dtype = is_shared ? shared : routed;
      const int width = is_shared ? shape.shared_width : shape.width;
      gate_.emplace_back(random, dtype, width, shape.hidden);
      up_.emplace_back(random, dtype, width, shape.hidden);
      down_.emplace_back(random, dtype, shape.hidden, width);
    }
    for (size_t row = 0; row < rows_; ++row) {
      auto order = random.permutation(shape.experts);
      ids_.insert(ids_.end(), order.begin(), order.begin() + shape.top_k);
    }
  }

  Values run(ops::Ops& backend, size_t first, size_t rows, ops::Role role,
             const ops::CombineArgs* combine = nullptr) const {
    std::vector<ops::ExpertWeight> experts;
    for (size_t expert = 0; expert < gate_.size(); ++expert)
      experts.push_back({gate_[expert].view(), up_[expert].view(), down_[expert].view()});
    Values out(rows * hidden_);
    ops::CombineArgs after;
    if (combine != nullptr) after = *combine, after.out = out.data();
    backend.experts({.x = x_.data() + first * hidden_,
                     .ids = ids_.data() + first * top_k_,
                     .weights = routing_.data() + first * top_k_,
                     .shared_logit = shared_logit_.data() + first,
                     .experts = std::span(experts).first(experts.size() - 1),
                     .shared = experts.back(),
                     .out = out.data(),
                     .combine = combine == nullptr ? nullptr : &after,
                     .rows = static_cast<int>(rows),
                     .top_k = shape_.top_k,
                     .role = role});
    EXPECT_TRUE(out.guards_intact());
    return out;
  }

  std::vector<double> by_definition(size_t row) const {
    std::vector<double> out(hidden_, 0.0);
    for (size_t slot = 0; slot < top_k_; ++slot)
      add(static_cast<size_t>(ids_[row * top_k_ + slot]), row,
          double{routing_.all()[row * top_k_ + slot]}, out);
    add(gate_.size() - 1, row, sigmoid(double{shared_logit_.all()[row]}), out);
    return out;
  }
  size_t rows() const { return rows_; }
  size_t hidden() const { return hidden_; }
  double tolerance() const {
    return 8 * sum_tolerance(static_cast<double>(std::max(shape_.hidden, shape_.width)));
  }

 private:
  void add(size_t expert, size_t row, double scale, std::vector<double>& out) const {
    const auto x = to_double(x_.row(row, hidden_));
    auto gated = product_by_definition(x, gate_[expert]);
    const auto up = product_by_definition(x, up_[expert]);
    for (size_t col = 0; col < gated.size(); ++col) gated[col] = silu(gated[col]) * up[col];
    const auto result = product_by_definition(gated, down_[expert]);
    for (size_t col = 0; col < out.size(); ++col) out[col] += scale * result[col];
  }

  ExpertShape shape_;
  size_t rows_, hidden_, top_k_;
  Values x_, routing_, shared_logit_;
  std::vector<Weight> gate_{}, up_{}, down_{};
  std::vector<int32_t> ids_{};
};

constexpr ExpertShape kExpertShapes[] = {{3, 2, 2, 1, 1},
                                         {33, 17, 40, 6, 6},
                                         {64, 32, 32, 16, 4},
                                         {130, 140, 5, 5, 3},
                                         {128, 64, 64, 12, 10}};

class ExpertsOpTest : public OpTest {
 protected:
  double limit(const ExpertsCase& data) const {
    return tolerance(data.tolerance(), kExpertRoundings);
  }
};

TEST_P(ExpertsOpTest, MatchesTheDefinition) {
  Random random(44);
  for (const ExpertShape& shape : kExpertShapes)
    for (const DType routed : kWeightTypes)
      for (const int rows : sized<std::vector<int>>({1, 2, 3, 5, 17, 65}, {1, 17, 65}))
        for (const ops::Role role : kRoles) {
          const ExpertsCase data(random, shape, routed, DType::kBF16, rows);
          const Values got = data.run(*ops_, 0, data.rows(), role);
          for (size_t row = 0; row < data.rows(); ++row)
            ASSERT_TRUE(close(got.row(row, data.hidden()), to_float(data.by_definition(row)),
                              limit(data), 1))
                << dtype_name(routed) << " hidden " << shape.hidden << " row " << row << " of "
                << rows << " " << role_name(role);
        }
}

TEST_P(ExpertsOpTest, SharedExpertHasItsOwnTypeAndWidth) {
  Random random(45);
  for (const DType shared : kWeightTypes) {
    const ExpertsCase data(random, kExpertShapes[1], DType::kF8E4M3, shared, 4);
    const Values got = data.run(*ops_, 0, data.rows(), ops::Role::kDecode);
    for (size_t row = 0; row < data.rows(); ++row)
      ASSERT_TRUE(
          close(got.row(row, data.hidden()), to_float(data.by_definition(row)), limit(data), 1));
  }
}

TEST_P(ExpertsOpTest, CombineFollowsTheExperts) {
  Random random(51);
  constexpr int kBranches = 3, kRows = 5;
  for (const ExpertShape& shape : kExpertShapes)
    for (const ops::Role role : kRoles) {
      const ExpertsCase data(random, shape, DType::kBF16, DType::kBF16, kRows);
      const Values before(random.normals(kRows * kBranches * data.hidden()));
      const Values inject(random.normals(kRows * kBranches));
      Values wide(before.all()), want(before.all());
      ops::CombineArgs combine{.wide = wide.data(),
                               .inject = inject.data(),
                               .eps = kEps,
                               .rows = kRows,
                               .branches = kBranches,
                               .hidden = shape.hidden};
      const Values out = data.run(*ops_, 0, kRows, role, &combine);
      ASSERT_TRUE(wide.guards_intact());
      combine.wide = want.data();
      combine.out = out.data();
      ops_->combine(combine);
      ASSERT_TRUE(close(wide.all(), want.all(), tolerance(sum_tolerance(2), kCombineRoundings), 1))
          << "hidden " << shape.hidden << " " << role_name(role);
    }
}

TEST_P(ExpertsOpTest, EmptyLaunchWritesNothing) {
  Random random(46);
  const ExpertsCase data(random, kExpertShapes[2], DType::kBF16, DType::kBF16, 1);
  for (const ops::Role role : kRoles) EXPECT_EQ(data.run(*ops_, 0, 0, role).size(), 0U);
}

TEST_P(ExpertsOpTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  Random random(47);
  for (const ExpertShape& shape : kExpertShapes)
    for (const DType dtype : kWeightTypes) {
      const ExpertsCase data(random, shape, dtype, DType::kBF16, 24);
      const Values all = data.run(*ops_, 0, data.rows(), ops::Role::kDecode);
      for (size_t rows = 1; rows <= kMaxDecodeRows; ++rows)
        for (size_t first = 0; first + rows <= data.rows(); first += rows) {
          const Values some = data.run(*ops_, first, rows, ops::Role::kDecode);
          ASSERT_TRUE(same_bits(some.all(), all.all().subspan(first * data.hidden(), some.size())))
              << dtype_name(dtype) << " hidden " << shape.hidden << " rows " << rows;
        }
    }
}

/// A repeated launch must not depend on what ran before it.
TEST_P(ExpertsOpTest, RepeatsItself) {
  Random random(48);
  const ExpertsCase data(random, kExpertShapes[2], DType::kF8E4M3, DType::kBF16, 40);
  const ExpertsCase other(random, kExpertShapes[3], DType::kF32, DType::kF32, 9);
  for (const ops::Role role : kRoles) {
    const Values first = data.run(*ops_, 0, data.rows(), role);
    other.run(*ops_, 0, other.rows(), role);
    EXPECT_TRUE(same_bits(data.run(*ops_, 0, data.rows(), role).all(), first.all()));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, RouterOpTest, testing::ValuesIn(backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Cpu, ExpertsOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
