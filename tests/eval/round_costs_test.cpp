// SPDX-License-Identifier: Apache-2.0
// Bytes of rounds: those of the ops between one embedding and the next.
#include "eval/round_costs.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "runtime/backend.h"

namespace tessera {
namespace {

constexpr int kVocab = 4, kHidden = 64, kRows = 3;

class RoundCostsTest : public testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.ops = OpsKind::kReference;
    auto backend = make_backend(options);
    ASSERT_TRUE(backend) << backend.error().message();
    backend_ = std::move(*backend);
    costs_.emplace(*backend_);
  }

  static ops::LinearWeight weight(std::vector<float>& data) {
    return {.data = data.data(),
            .dtype = DType::kF32,
            .out_features = static_cast<int>(data.size()) / kHidden,
            .in_features = kHidden};
  }
  ops::EmbedArgs embedding(int rows) {
    return {.ids = ids_.data(),
            .table = weight(table_),
            .wide = x_.data(),
            .rows = rows,
            .branches = 1};
  }
  /// The trunk launch of a round and, after it, so many products of one row.
  double run_round(int rows, int products) {
    const ops::EmbedArgs embed = embedding(rows);
    costs_->embed(embed);
    ops::Cost cost = ops::cost(embed);
    for (int done = 0; done < products; ++done) {
      const ops::LinearPart part{weight(product_), y_.data()};
      const ops::LinearArgs args{.x = x_.data(), .parts = {&part, 1}, .rows = 1};
      costs_->linear(args);
      cost += ops::cost(args);
    }
    return cost.bytes_read + cost.bytes_written;
  }

  std::unique_ptr<ops::Ops> backend_{};
  std::optional<RoundCosts> costs_{};
  std::array<int32_t, kRows> ids_{0, 1, 2};
  std::vector<float> table_ = std::vector<float>(kVocab * kHidden, 1.0F);
  std::vector<float> product_ = std::vector<float>(kHidden * kHidden, 1.0F);
  std::vector<float> x_ = std::vector<float>(kRows * kHidden);
  std::vector<float> y_ = std::vector<float>(kRows * kHidden);
};

TEST_F(RoundCostsTest, MeansOfTheRoundsWithSoManyRows) {
  const double short_round = run_round(kRows, 1);
  run_round(1, 2);  // of another shape
  const double long_round = run_round(kRows, 3);
  run_round(kRows, 5);  // the last one may not be whole
  EXPECT_GT(long_round, short_round);
  EXPECT_DOUBLE_EQ(costs_->bytes_per_round(kRows), (short_round + long_round) / 2);
  EXPECT_EQ(costs_->bytes_per_round(2), 0);
}

TEST_F(RoundCostsTest, NothingIsLeftAfterARestart) {
  run_round(kRows, 1);
  run_round(kRows, 1);
  costs_->restart();
  EXPECT_EQ(costs_->bytes_per_round(kRows), 0);
  const double bytes = run_round(1, 1);
  run_round(1, 0);
  EXPECT_DOUBLE_EQ(costs_->bytes_per_round(1), bytes);
}

}  // namespace
}  // namespace tessera
