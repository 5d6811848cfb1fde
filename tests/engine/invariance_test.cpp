// SPDX-License-Identifier: Apache-2.0
// The same tokens give the same logits however they are cut into launches, whoever shares the
// launch, and whatever happened to the state in between.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "eval/golden_tap.h"
#include "tests/engine/model_harness.h"

namespace tessera::test {
namespace {

constexpr double kSameLogits = 1e-5;  // the bound for FP32, relative L2
constexpr size_t kTokens = 600;       // past the selection budget of nano many times over
constexpr size_t kCut = 141;          // in the middle of a block, a page and a GDN chunk

std::vector<float> tail(const std::vector<float>& logits, size_t rows, size_t vocab) {
  return {logits.end() - static_cast<ptrdiff_t>(rows * vocab), logits.end()};
}

class InvarianceTest : public testing::TestWithParam<OpsKind> {
 protected:
  void SetUp() override {
    model_ = load_model("models/nano", GetParam());
    ASSERT_NE(model_, nullptr);
    ids_ = sample_ids(*model_, kTokens, 1);
    vocab_ = static_cast<size_t>(model_->config().vocab_size);
  }
  void expect_close(const std::vector<float>& got, const std::vector<float>& want,
                    const char* what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    EXPECT_LE(relative_l2(got.data(), want.data(), got.size()), kSameLogits) << what;
  }

  std::unique_ptr<LoadedModel> model_;
  std::vector<int32_t> ids_;
  size_t vocab_ = 0;
};

TEST_P(InvarianceTest, AnyChunkSizeGivesTheSameLogitsAndSelections) {
  RecordingTap whole_tap;
  const ScopedSequence whole = open_sequence(*model_);
  const auto want = run_chunks(*model_, whole.id(), ids_, kTokens, ops::Role::kPrefill, &whole_tap);
  ASSERT_FALSE(whole_tap.selected.empty());
  for (const size_t chunk : {1, 2, 3, 4, 5, 63, 64, 257}) {
    RecordingTap tap;
    const ScopedSequence sequence = open_sequence(*model_);
    const auto got = run_chunks(*model_, sequence.id(), ids_, chunk, ops::Role::kPrefill, &tap);
    expect_close(got, want, ("chunk " + std::to_string(chunk)).c_str());
    EXPECT_EQ(tap.selected, whole_tap.selected) << "chunk " << chunk;
  }
}

TEST_P(InvarianceTest, DecodingAgreesWithPrefill) {
  const ScopedSequence whole = open_sequence(*model_);
  const auto want = run_chunks(*model_, whole.id(), ids_, kTokens, ops::Role::kPrefill);
  const ScopedSequence sequence = open_sequence(*model_);
  expect_close(run_chunks(*model_, sequence.id(), ids_, 1, ops::Role::kDecode), want, "decode");
}

TEST_P(InvarianceTest, InterleavedSequencesEqualEachAlone) {
  const auto other_ids = sample_ids(*model_, kTokens, 2);
  const ScopedSequence alone = open_sequence(*model_), other_alone = open_sequence(*model_);
  const auto want = run_chunks(*model_, alone.id(), ids_, 7, ops::Role::kPrefill);
  const auto want_other = run_chunks(*model_, other_alone.id(), other_ids, 5, ops::Role::kPrefill);

  const ScopedSequence first = open_sequence(*model_), second = open_sequence(*model_);
  std::vector<float> got, got_other;
  size_t done = 0, other_done = 0;
  while (done < kTokens || other_done < kTokens) {
    const size_t rows = std::min<size_t>(7, kTokens - done);
    const size_t other_rows = std::min<size_t>(5, kTokens - other_done);
    const SequenceRows work[] = {
        {first.id(), std::span(ids_).subspan(done, rows)},
        {second.id(), std::span<const int32_t>(other_ids).subspan(other_done, other_rows)}};
    const auto logits = run_rows(*model_, work, ops::Role::kPrefill);
    const auto middle = logits.begin() + static_cast<ptrdiff_t>(rows * vocab_);
    got.insert(got.end(), logits.begin(), middle);
    got_other.insert(got_other.end(), middle, logits.end());
    done += rows;
    other_done += other_rows;
  }
  expect_close(got, want, "first");
  expect_close(got_other, want_other, "second");
}

TEST_P(InvarianceTest, ForkSnapshotAndFileContinueBitForBit) {
  const std::span<const int32_t> ids(ids_);
  const ScopedSequence plain = open_sequence(*model_);
  run_chunks(*model_, plain.id(), ids.first(kCut), kCut, ops::Role::kPrefill);
  Result<SequenceId> fork = model_->store().fork(plain.id());
  ASSERT_TRUE(fork);
  const ScopedSequence forked(model_->store(), *fork);
  const auto snapshot = model_->store().snapshot(plain.id());
  const std::string path = testing::TempDir() + "tessera_invariance_" +
                           std::to_string(static_cast<int>(GetParam())) + ".state";
  ASSERT_TRUE(save_state_file(*snapshot, model_->state_identity(), path));

  const auto rest = ids.subspan(kCut, 100);
  const auto want = run_chunks(*model_, plain.id(), rest, 1, ops::Role::kDecode);
  EXPECT_EQ(run_chunks(*model_, forked.id(), rest, 1, ops::Role::kDecode), want) << "fork";

  Result<SequenceId> restored = model_->store().restore(*snapshot);
  ASSERT_TRUE(restored);
  const ScopedSequence again(model_->store(), *restored);
  EXPECT_EQ(run_chunks(*model_, again.id(), rest, 1, ops::Role::kDecode), want) << "restore";

  // A fresh engine, as after a restart.
  const auto fresh = load_model("models/nano", GetParam());
  auto loaded = load_state_file(path, fresh->state_identity(), fresh->store().shared_pool());
  ASSERT_TRUE(loaded) << loaded.error().message();
  Result<SequenceId> reloaded = fresh->store().restore(**loaded);
  ASSERT_TRUE(reloaded);
  const ScopedSequence from_file(fresh->store(), *reloaded);
  EXPECT_EQ(run_chunks(*fresh, from_file.id(), rest, 1, ops::Role::kDecode), want) << "file";
  std::remove(path.c_str());
}

TEST_P(InvarianceTest, AUsedSlotLeavesNoTrace) {
  const auto other_ids = sample_ids(*model_, kTokens, 3);
  const auto run_fresh = [&] {
    const ScopedSequence sequence = open_sequence(*model_);
    return run_chunks(*model_, sequence.id(), ids_, 64, ops::Role::kPrefill);
  };
  const auto want = run_fresh();
  for (int round = 0; round < 3; ++round) {
    const ScopedSequence longer = open_sequence(*model_);
    run_chunks(*model_, longer.id(), other_ids, 257, ops::Role::kPrefill);
  }
  EXPECT_EQ(run_fresh(), want);
}

TEST_P(InvarianceTest, AnEmptyLaunchChangesNothing) {
  const ScopedSequence sequence = open_sequence(*model_);
  const SequenceRows nothing{.sequence = sequence.id(), .ids = {}};
  EXPECT_TRUE(run_rows(*model_, {&nothing, 1}, ops::Role::kPrefill).empty());
  EXPECT_TRUE(run_rows(*model_, {}, ops::Role::kDecode).empty());
  EXPECT_EQ(model_->store().length(sequence.id()), 0);
}

TEST_P(InvarianceTest, ABudgetThatHoldsEverythingIsDense) {
  const size_t dense_tokens = 200;
  const auto dense = load_model("models/nano", GetParam(), CacheType::kF32, 256);
  const auto larger = load_model("models/nano", GetParam(), CacheType::kF32, 512);
  const auto sparse = load_model("models/nano", GetParam());
  const auto run_on = [&](LoadedModel& model) {
    const ScopedSequence sequence = open_sequence(model);
    return run_chunks(model, sequence.id(), std::span(ids_).first(dense_tokens), dense_tokens,
                      ops::Role::kPrefill);
  };
  const auto want = run_on(*larger);
  EXPECT_EQ(run_on(*dense), want);
  const auto got = run_on(*sparse);
  EXPECT_GT(relative_l2(got.data(), want.data(), got.size()), 1e-3) << "the budget has no effect";
}

INSTANTIATE_TEST_SUITE_P(Backends, InvarianceTest,
                         testing::Values(OpsKind::kReference, OpsKind::kFast),
                         [](const auto& variant) {
                           return variant.param == OpsKind::kFast ? "fast" : "reference";
                         });

/// Promised for the fast backend: a decoded row has the same bits alone, with up to K_max others of
/// its sequence, and in any batch.
class DecodeBitsTest : public testing::TestWithParam<const char*> {};

TEST_P(DecodeBitsTest, RowsOfASequenceEqualOneRowAlone) {
  if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not on this machine";
  const auto model = load_model(GetParam(), OpsKind::kFast);
  ASSERT_NE(model, nullptr);
  const auto ids = sample_ids(*model, 160, 4);
  const auto other_ids = sample_ids(*model, 90, 5);
  const std::span<const int32_t> prompt = std::span(ids).first(kCut - 1);
  const auto vocab = static_cast<size_t>(model->config().vocab_size);

  for (size_t rows = 1; rows <= 6; ++rows) {
    const auto drafted = std::span(ids).subspan(prompt.size(), rows);
    const ScopedSequence alone = open_sequence(*model), together = open_sequence(*model);
    const ScopedSequence batched = open_sequence(*model), other = open_sequence(*model);
    for (const ScopedSequence* sequence : {&alone, &together, &batched})
      ASSERT_TRUE(model->prefill(sequence->id(), prompt));
    ASSERT_TRUE(model->prefill(other.id(), std::span(other_ids).first(80)));

    const auto want = run_chunks(*model, alone.id(), drafted, 1, ops::Role::kDecode);
    EXPECT_EQ(run_chunks(*model, together.id(), drafted, rows, ops::Role::kDecode), want) << rows;
    const SequenceRows work[] = {{other.id(), std::span<const int32_t>(other_ids).subspan(80, 3)},
                                 {batched.id(), drafted}};
    EXPECT_EQ(tail(run_rows(*model, work, ops::Role::kDecode), rows, vocab), want) << rows;
  }
}

TEST_P(DecodeBitsTest, LaunchesCutOnTheGridGiveTheSameBits) {
  if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not on this machine";
  const auto model = load_model(GetParam(), OpsKind::kFast);
  ASSERT_NE(model, nullptr);
  const auto ids = sample_ids(*model, 400, 6);
  const ScopedSequence whole = open_sequence(*model), cut = open_sequence(*model);
  const auto want = run_chunks(*model, whole.id(), ids, 400, ops::Role::kPrefill);
  EXPECT_EQ(run_chunks(*model, cut.id(), ids, 64, ops::Role::kPrefill), want);
}

TEST_P(DecodeBitsTest, TheNumberOfThreadsDoesNotMatter) {
  if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not on this machine";
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    EngineOptions options;
    options.model_dir = GetParam();
    options.threads = threads;
    auto model = LoadedModel::load(options);
    ASSERT_TRUE(model);
    const auto ids = sample_ids(**model, 150, 7);
    const ScopedSequence sequence = open_sequence(**model);
    auto logits =
        run_chunks(**model, sequence.id(), std::span(ids).first(140), 140, ops::Role::kPrefill);
    const auto decoded =
        run_chunks(**model, sequence.id(), std::span(ids).subspan(140), 1, ops::Role::kDecode);
    logits.insert(logits.end(), decoded.begin(), decoded.end());
    results.push_back(std::move(logits));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

INSTANTIATE_TEST_SUITE_P(Models, DecodeBitsTest,
                         testing::Values("models/nano", "models/tiny", "../shared/golden/micro"),
                         [](const auto& variant) {
                           return std::filesystem::path(variant.param).filename().string();
                         });

}  // namespace
}  // namespace tessera::test
