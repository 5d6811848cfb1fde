// SPDX-License-Identifier: Apache-2.0
// Sampling over the released vocabulary: the CPU op's tokens, the same outcome in every launch,
// ties and broken rows, and logits that arrive late.
#include <algorithm>
#include <cstring>

#include "cpu/cpu_ops.h"
#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"
#include "cuda/sample/sample_plan.h"

namespace tessera::test {
namespace {

/// Reduced: just more than one block takes, so that clusters still share a row.
const int kVocab = sized(248320, 16640);
const auto kWidth = static_cast<size_t>(kVocab);
constexpr float kInf = std::numeric_limits<float>::infinity();

using Results = std::vector<ops::SampledToken>;

class SampleCudaTest : public CudaTest {
 protected:
  /// Normal logits; rows of every kind of setting.
  void prepare(size_t rows, double scale) {
    world().clear();
    random_ = Random(91);
    rows_.clear();
    edits_.clear();
    logits_.clear();
    logits_.reserve(rows * kWidth);
    for (size_t at = 0; at < rows * kWidth; ++at)
      logits_.push_back(static_cast<float>(scale) * random_.normal());
    for (size_t row = 0; row < rows; ++row) add_row(row);
    device_ = world().copy(logits_);
  }

  void add_row(size_t index) {
    constexpr float kTemperatures[] = {1, 0, 0.6F, 1.5F, 1};
    constexpr int kTopK[] = {20, 0, 1, 50, 400, 0, 100000};
    constexpr float kTopP[] = {0.95F, 1, 0.5F, 1e-6F, 1, 0.999F};
    constexpr float kMinP[] = {0, 0.05F, 0};
    ops::SampleRow row{.temperature = kTemperatures[index % std::size(kTemperatures)],
                       .top_k = kTopK[index % std::size(kTopK)],
                       .top_p = kTopP[index % std::size(kTopP)],
                       .min_p = kMinP[index % std::size(kMinP)],
                       .repetition_penalty = 1.2F,
                       .presence_penalty = 0.5F,
                       .frequency_penalty = 0.1F,
                       .valid_vocab = index % 4 == 3 ? kVocab - 251 : kVocab,
                       .seed = 1000 + index,
                       .position = static_cast<int64_t>(77 * index),
                       .top_logprobs = static_cast<int>(index % 5) * 5 - 1,
                       .edits_begin = static_cast<int>(edits_.size())};
    if (index % 2 == 1) {
      std::vector<int32_t> tokens;
      for (int count = 0; count < sized(3000, 300); ++count)
        tokens.push_back(random_.below(kVocab));
      std::sort(tokens.begin(), tokens.end());
      for (const int32_t token : tokens)
        edits_.push_back({token, random_.uniform(-1, 1), random_.below(4) - 1});
    }
    row.num_edits = static_cast<int>(edits_.size()) - row.edits_begin;
    rows_.push_back(row);
  }

  ops::SampleArgs args(const float* logits, size_t first, Results& results) const {
    return {.logits = logits + first * kWidth,
            .vocab = kVocab,
            .rows = std::span(rows_).subspan(first, results.size()),
            .edits = edits_,
            .results = results};
  }
  Results run(size_t first, size_t count) {
    Results results(count);
    cuda::launch_sample(context(), args(device_, first, results));
    return results;
  }
  Results run() { return run(0, rows_.size()); }
  Results by_cpu() const {
    Results results(rows_.size());
    cpu::make_reference_ops()->sample(args(logits_.data(), 0, results));
    return results;
  }
  /// The row as another launch saw it.
  static bool same(const ops::SampledToken& left, const ops::SampledToken& right) {
    return std::memcmp(&left, &right, sizeof left) == 0;
  }

  /// Logits of a block.
  int slice() {
    Results results(rows_.size());
    return cuda::plan_sample(args(device_, 0, results), context().gpu(), 0).slice;
  }

  Random random_{91};
  std::vector<float> logits_;
  std::vector<ops::SampleRow> rows_;
  std::vector<ops::LogitEdit> edits_;
  const float* device_ = nullptr;
};

/// A draw within 1e-7 of a boundary may differ: none of these is.
TEST_F(SampleCudaTest, DrawsTheTokensOfTheCpu) {
  for (const double scale : sized<std::vector<double>>({0.05, 1.0, 3.0}, {1.0})) {
    SCOPED_TRACE(scale);
    prepare(sized<size_t>(42, 5), scale);
    const Results got = run(), want = by_cpu();
    for (size_t row = 0; row < rows_.size(); ++row) {
      SCOPED_TRACE(testing::Message() << "row " << row);
      ASSERT_EQ(got[row].status, ops::SampleStatus::kDrawn);
      ASSERT_EQ(got[row].token, want[row].token);
      ASSERT_NEAR(got[row].logprob, want[row].logprob, 1e-6 * (1 + std::abs(want[row].logprob)));
      ASSERT_EQ(got[row].num_top, want[row].num_top);
      for (size_t rank = 0; rank < static_cast<size_t>(got[row].num_top); ++rank) {
        ASSERT_EQ(got[row].top[rank].token, want[row].top[rank].token) << "rank " << rank;
        ASSERT_NEAR(got[row].top[rank].logprob, want[row].top[rank].logprob, 2e-5);
      }
    }
  }
}

TEST_F(SampleCudaTest, ARowHasTheSameOutcomeInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  prepare(20, 2);
  const Results all = run();
  const Results again = run();
  for (size_t row = 0; row < all.size(); ++row) {
    EXPECT_TRUE(same(again[row], all[row])) << "row " << row;
    EXPECT_TRUE(same(run(row, 1).front(), all[row])) << "row " << row;
  }
}

TEST_F(SampleCudaTest, GreedyTakesTheLowestIdOfTheBest) {
  const auto rows = sized<size_t>(4, 2);
  prepare(rows, 1);
  for (ops::SampleRow& row : rows_) row = {.temperature = 0, .valid_vocab = kVocab};
  std::vector<std::vector<int32_t>> best = {{0, kVocab - 1},
                                            {slice() - 1, slice()},
                                            {kVocab / 2, kVocab / 5 * 4, kVocab - 1},
                                            {kVocab - 1}};
  best.resize(rows);
  auto* device = const_cast<float*>(device_);
  for (size_t row = 0; row < best.size(); ++row)
    for (const int32_t token : best[row]) {
      const float highest = 100;
      world().copy_in(device + row * kWidth + token, &highest, sizeof highest);
    }
  const Results got = run();
  for (size_t row = 0; row < best.size(); ++row) EXPECT_EQ(got[row].token, best[row].front());
  for (ops::SampleRow& row : rows_) row.top_k = 1, row.temperature = 1;
  const Results drawn = run();
  for (size_t row = 0; row < best.size(); ++row) EXPECT_EQ(drawn[row].token, best[row].front());
}

TEST_F(SampleCudaTest, EqualLogitsAreDrawnFromTheFirst) {
  prepare(3, 0);
  rows_ = {{.top_k = 5000, .valid_vocab = kVocab},
           {.top_p = 0.25F, .valid_vocab = kVocab},
           {.valid_vocab = kVocab, .top_logprobs = ops::kMaxTopTokens}};
  for (int position = 0; position < sized(20, 1); ++position) {
    for (ops::SampleRow& row : rows_) row.position = position;
    const Results got = run(), want = by_cpu();
    EXPECT_LT(got[0].token, 5000);
    EXPECT_LT(got[1].token, kVocab / 4);
    for (int rank = 0; rank < ops::kMaxTopTokens; ++rank)
      ASSERT_EQ(got[2].top[static_cast<size_t>(rank)].token, rank);
    for (size_t row = 0; row < rows_.size(); ++row) EXPECT_EQ(got[row].token, want[row].token);
  }
}

TEST_F(SampleCudaTest, BrokenRowsAreNamed) {
  prepare(sized<size_t>(6, 4), 1);
  auto* device = const_cast<float*>(device_);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int32_t token : {5, kVocab / 2, kVocab - 1000})
    world().copy_in(device + token, token == 5 ? &kInf : &nan, sizeof nan);
  const std::vector<float> masked(kWidth, -kInf);
  world().copy_in(device + 2 * kWidth, masked.data(), kWidth * sizeof(float));
  const Results got = run();
  EXPECT_EQ(got[0].status, ops::SampleStatus::kBadLogit);
  EXPECT_EQ(got[0].token, 5);
  EXPECT_EQ(got[0].bad_logit, kInf);
  EXPECT_EQ(got[2].status, ops::SampleStatus::kNoToken);
  const Results want = by_cpu();
  for (size_t row = 0; row < rows_.size(); ++row) {
    if (row == 0 || row == 2) continue;
    EXPECT_EQ(got[row].status, ops::SampleStatus::kDrawn);
    EXPECT_EQ(got[row].token, want[row].token);
  }
}

TEST_F(SampleCudaTest, WaitsForTheLogits) {
  prepare(5, 2);
  for (const bool greedy : {false, true}) {
    if (greedy)
      for (ops::SampleRow& row : rows_) row = {.temperature = 0, .valid_vocab = kVocab};
    const Results want = run();
    Results got(rows_.size());
    DelayedProducer producer(context());
    producer.late(const_cast<float*>(device_), logits_.size() * sizeof(float));
    EXPECT_TRUE(producer.run([&] { cuda::launch_sample(context(), args(device_, 0, got)); }));
    for (size_t row = 0; row < got.size(); ++row) EXPECT_TRUE(same(got[row], want[row])) << row;
  }
}

}  // namespace
}  // namespace tessera::test
