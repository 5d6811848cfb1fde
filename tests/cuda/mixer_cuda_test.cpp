// SPDX-License-Identifier: Apache-2.0
// The one-launch mixer at the sizes it is made for: against the definition on a sample of rows,
// equal bits of a row in every launch and run, against the separate launches, and nothing touched
// before the inputs are there.
#include <algorithm>
#include <string>
#include <vector>

#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"
#include "cuda/mixer/mixer_plan.h"

namespace tessera::test {
namespace {

constexpr double kRounding = 0x1p-8;  // half a unit in the last place of a BF16 value
constexpr int kMostRows = 256;
constexpr size_t kBranches = cuda::MixerTile::kBranches;

struct Mixed {
  std::vector<float> mixed, inject;
};

class MixerCudaTest : public CudaTest {
 protected:
  void prepare(const cuda::MixerTile& tile, int rows) {
    world().clear();
    hidden_ = static_cast<size_t>(tile.hidden);
    rank_ = static_cast<size_t>(tile.rank);
    wide_ = kBranches * hidden_;
    weights_ = {.norm = world().floats(wide_, 0.2),
                .down = world().weight(DType::kBF16, tile.rank, tile.wide(), 3.0 * kBranches),
                .up = world().weight(DType::kBF16, tile.wide(), tile.rank, 2),
                .inject = world().weight(DType::kBF16, kBranches, tile.wide(), kBranches)};
    residual_ = world().bf16(static_cast<size_t>(rows) * wide_, 2);
    normed_ = world().bf16(static_cast<size_t>(rows) * wide_);
    ASSERT_EQ(
        std::string(cuda::supports_mixer_sm90(
            {.branches = kBranches, .hidden = tile.hidden, .rank = tile.rank}, context().gpu())),
        "");
  }

  ops::MixerArgs args(int first, int rows, ops::Role role) {
    const auto count = static_cast<size_t>(rows);
    const size_t offset = static_cast<size_t>(first) * wide_ * sizeof(uint16_t);
    return {.wide = static_cast<std::byte*>(residual_) + offset,
            .normed = static_cast<std::byte*>(normed_) + offset,
            .weights = weights_,
            .mixed = world().bytes(count * hidden_ * sizeof(uint16_t)),
            .inject = reinterpret_cast<float*>(world().bytes(count * kBranches * sizeof(float))),
            .rows = rows,
            .branches = static_cast<int>(kBranches),
            .hidden = static_cast<int>(hidden_),
            .eps = kEps,
            .role = role};
  }

  Mixed results(const ops::MixerArgs& done) {
    const auto count = static_cast<size_t>(done.rows);
    Mixed out{.mixed = read_bf16(done.mixed, count * hidden_), .inject = {}};
    if (done.inject != nullptr) out.inject = read_floats(done.inject, count * kBranches);
    return out;
  }

  Mixed run(int first, int rows, ops::Role role) {
    const ops::MixerArgs launch = args(first, rows, role);
    cuda::launch_mixer(context(), launch);
    return results(launch);
  }

  void read_weights() {
    down_ = read_weight(weights_.down);
    up_ = read_weight(weights_.up);
    inject_ = read_weight(weights_.inject);
  }

  static double product(std::span<const double> x, const std::vector<float>& weight, size_t row) {
    double sum = 0;
    for (size_t in = 0; in < x.size(); ++in) sum += x[in] * double{weight[row * x.size() + in]};
    return sum;
  }

  /// Row `row` of `got` against the definition for the normed row `normed`.
  void expect_row(std::span<const double> normed, const Mixed& got, size_t row) const {
    std::vector<double> low(rank_), mixed(hidden_, 0.0), inject(kBranches);
    for (size_t out = 0; out < rank_; ++out)
      low[out] = double{as_bf16(static_cast<float>(silu(product(normed, down_, out) / kBranches)))};
    for (size_t col = 0; col < wide_; ++col)
      mixed[col % hidden_] += sigmoid(product(low, up_, col)) * normed[col] / kBranches;
    const std::span<const float> values(got.mixed);
    ASSERT_TRUE(close(values.subspan(row * hidden_, hidden_), to_float(mixed),
                      2 * kRounding + sum_tolerance(static_cast<double>(wide_))));
    if (got.inject.empty()) return;
    for (size_t branch = 0; branch < kBranches; ++branch)
      inject[branch] = product(normed, inject_, branch) / kBranches;
    const std::span<const float> logits(got.inject);
    ASSERT_TRUE(close(logits.subspan(row * kBranches, kBranches), to_float(inject),
                      sum_tolerance(static_cast<double>(wide_)), 1));
  }

  std::vector<double> row_of(const void* rows, size_t row) {
    return to_double(
        read_bf16(static_cast<const std::byte*>(rows) + row * wide_ * sizeof(uint16_t), wide_));
  }

  void expect_same_rows(const Mixed& all, int first, const Mixed& some, int rows) const {
    const auto begin = static_cast<size_t>(first), count = static_cast<size_t>(rows);
    const std::span<const float> mixed(all.mixed), inject(all.inject);
    ASSERT_TRUE(same_bits(some.mixed, mixed.subspan(begin * hidden_, count * hidden_)));
    ASSERT_TRUE(same_bits(some.inject, inject.subspan(begin * kBranches, count * kBranches)));
  }

  size_t hidden_ = 0, rank_ = 0, wide_ = 0;
  ops::MixerWeights weights_;
  std::vector<float> down_, up_, inject_;
  void* residual_ = nullptr;
  void* normed_ = nullptr;
};

TEST_F(MixerCudaTest, MatchesTheDefinition) {
  for (const cuda::MixerTile& tile : cuda::kMixerTiles) {
    ASSERT_NO_FATAL_FAILURE(prepare(tile, kMostRows));
    read_weights();
    // Every block reads its weights once per 8 rows: the released size is the expensive one.
    const std::vector<int> few = tile.clusters > 1 ? std::vector{33} : std::vector{1, 9, 70};
    for (const int rows :
         sized<std::vector<int>>({1, 3, 8, 9, 16, 17, 32, 33, 70, kMostRows}, few)) {
      SCOPED_TRACE(testing::Message() << "hidden " << hidden_ << " rows " << rows);
      const Mixed got = run(0, rows, ops::Role::kDecode);
      for (const int row : {0, rows / 2, rows - 1})
        ASSERT_NO_FATAL_FAILURE(
            expect_row(row_of(normed_, static_cast<size_t>(row)), got, static_cast<size_t>(row)));
    }
  }
}

TEST_F(MixerCudaTest, RowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  for (const cuda::MixerTile& tile : cuda::kMixerTiles) {
    ASSERT_NO_FATAL_FAILURE(prepare(tile, kMostRows));
    const Mixed all = run(0, kMostRows, ops::Role::kDecode);
    ASSERT_NO_FATAL_FAILURE(
        expect_same_rows(all, 0, run(0, kMostRows, ops::Role::kDecode), kMostRows));
    for (const int rows : {1, 2, 3, 4, 5, 6, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100})
      for (int first = 0; first + rows <= kMostRows; first += 29) {
        SCOPED_TRACE(testing::Message() << "hidden " << hidden_ << " first " << first);
        ASSERT_NO_FATAL_FAILURE(
            expect_same_rows(all, first, run(first, rows, ops::Role::kDecode), rows));
      }
  }
}

/// Launches that follow each other without a pause share the memory of the handover.
TEST_F(MixerCudaTest, LaunchesInARowDoNotDisturbEachOther) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  ASSERT_NO_FATAL_FAILURE(prepare(cuda::kMixerTiles[0], kMostRows));
  const Mixed all = run(0, kMostRows, ops::Role::kDecode);
  constexpr int kRowCounts[] = {1, 40, 4, 8, 1, 33, 6};
  constexpr int kRounds = 40;
  std::vector<ops::MixerArgs> launches;
  for (int round = 0; round < kRounds; ++round)
    for (const int rows : kRowCounts)
      launches.push_back(args((round * 7 + rows) % (kMostRows - rows), rows, ops::Role::kDecode));
  for (const ops::MixerArgs& launch : launches) cuda::launch_mixer(context(), launch);
  for (const ops::MixerArgs& launch : launches) {
    const auto offset =
        static_cast<const std::byte*>(launch.normed) - static_cast<const std::byte*>(normed_);
    const auto first = static_cast<int>(static_cast<size_t>(offset) / (wide_ * sizeof(uint16_t)));
    ASSERT_NO_FATAL_FAILURE(expect_same_rows(all, first, results(launch), launch.rows));
  }
}

TEST_F(MixerCudaTest, SeparateLaunchesAgree) {
  for (const cuda::MixerTile& tile : cuda::kMixerTiles) {
    ASSERT_NO_FATAL_FAILURE(prepare(tile, 600));
    read_weights();
    // Reduced: as few rows as make a block of gated_up go round its ring.
    for (const int rows : sized<std::vector<int>>({1, 64, 65, 600}, {193})) {
      SCOPED_TRACE(testing::Message() << "hidden " << hidden_ << " rows " << rows);
      const Mixed got = run(0, rows, ops::Role::kPrefill);
      const auto last = static_cast<size_t>(rows - 1);
      ASSERT_NO_FATAL_FAILURE(expect_row(row_of(normed_, 0), got, 0));
      ASSERT_NO_FATAL_FAILURE(expect_row(row_of(normed_, last), got, last));
      if (reduced()) continue;  // the rest launches the same kernels
      ASSERT_NO_FATAL_FAILURE(expect_same_rows(got, 0, run(0, rows, ops::Role::kPrefill), rows));
      const Mixed want = run(0, rows, ops::Role::kDecode);
      ASSERT_TRUE(close(got.mixed, want.mixed, 2 * kRounding));
      ASSERT_TRUE(close(got.inject, want.inject, 1e-4, 1));
    }
  }
}

TEST_F(MixerCudaTest, NormsRowsThatNobodyNormed) {
  ASSERT_NO_FATAL_FAILURE(prepare(cuda::kMixerTiles[sized<size_t>(0, 1)], 5));
  read_weights();
  const std::vector<float> norm = read_floats(weights_.norm, wide_);
  for (const ops::Role role : kRoles) {
    ops::MixerArgs launch = args(0, 5, role);
    launch.normed = nullptr;
    cuda::launch_mixer(context(), launch);
    const Mixed got = results(launch);
    for (size_t row = 0; row < 5; ++row) {
      const std::vector<double> residual = row_of(residual_, row);
      std::vector<double> normed;
      for (size_t start = 0; start < wide_; start += hidden_)
        for (const double value :
             rms_by_definition(std::span(residual).subspan(start, hidden_),
                               std::span(norm).subspan(start, hidden_), double{kEps}))
          normed.push_back(double{as_bf16(static_cast<float>(value))});
      ASSERT_NO_FATAL_FAILURE(expect_row(normed, got, row));
    }
  }
}

TEST_F(MixerCudaTest, FinalMixerHasNoInjectLogits) {
  ASSERT_NO_FATAL_FAILURE(prepare(cuda::kMixerTiles[0], 7));
  read_weights();
  for (const ops::Role role : kRoles) {
    ops::MixerArgs launch = args(0, 7, role);
    launch.inject = nullptr;
    launch.weights.inject = {};
    cuda::launch_mixer(context(), launch);
    const Mixed got = results(launch);
    for (const size_t row : {size_t{0}, size_t{6}})
      ASSERT_NO_FATAL_FAILURE(expect_row(row_of(normed_, row), got, row));
    if (!reduced()) {
      ASSERT_TRUE(same_bits(got.mixed, run(0, 7, role).mixed));
    }
  }
}

TEST_F(MixerCudaTest, WaitsForItsInputs) {
  for (const ops::Role role : kRoles)
    for (const bool normed : {true, false})
      for (const int rows : {1, 20, 70}) {
        SCOPED_TRACE(testing::Message() << role_name(role) << " rows " << rows);
        ASSERT_NO_FATAL_FAILURE(prepare(cuda::kMixerTiles[0], rows));
        ops::MixerArgs launch = args(0, rows, role);
        if (!normed) launch.normed = nullptr;
        cuda::launch_mixer(context(), launch);
        const Mixed want = results(launch);
        const auto count = static_cast<size_t>(rows);
        DelayedProducer producer(context());
        producer.late(normed ? normed_ : residual_, count * wide_ * sizeof(uint16_t));
        producer.untouched(launch.mixed, count * hidden_ * sizeof(uint16_t));
        producer.untouched(launch.inject, count * kBranches * sizeof(float));
        EXPECT_TRUE(producer.run([&] { cuda::launch_mixer(context(), launch); }));
        ASSERT_NO_FATAL_FAILURE(expect_same_rows(want, 0, results(launch), rows));
      }
}

}  // namespace
}  // namespace tessera::test
