// SPDX-License-Identifier: Apache-2.0
// The whole model on a device: parity with the golden sets and trained models, and the same bits
// however decoded rows are launched.
#include <gtest/gtest.h>
#include <tessera/verify.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "cuda/cuda_backend.h"
#include "engine/model_harness.h"
#include "eval/synthetic.h"

namespace tessera::test {
namespace {

constexpr const char* kNano = "models/nano";
constexpr const char* kMicro = "../shared/golden/micro";
constexpr double kMicroLogits = 1.3e-2;  // the reference's own BF16 pass is off by 1.0e-2
constexpr size_t kTokens = 300;
constexpr size_t kDecoded = 60;

std::string failures(const VerifyReport& report) {
  std::string text;
  for (const VerifyRow& row : report.rows)
    if (!row.passed)
      text += row.name + ": " + std::to_string(row.value) + " > " + std::to_string(row.bound) +
              " (" + row.note + ")\n";
  return text;
}

std::string all_rows(const VerifyReport& report) {
  std::string text;
  for (const VerifyRow& row : report.rows)
    text += row.name + ": " + std::to_string(row.value) + " (" + row.note + ")\n";
  return text;
}

std::unique_ptr<LoadedModel> load(const std::string& dir,
                                  const std::function<void(EngineOptions&)>& edit = {}) {
  EngineOptions options;
  options.model_dir = dir;
  options.device = "cuda";
  options.max_context = 1024;
  if (edit) edit(options);
  auto model = LoadedModel::load(options);
  EXPECT_TRUE(model) << (model ? "" : model.error().message());
  return model ? std::move(*model) : nullptr;
}

class CudaEngineTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string reason = cuda::why_unusable(0); !reason.empty())
      GTEST_SKIP() << "no CUDA device: " << reason;
    if (!std::filesystem::exists(std::string(GetParam()) + "/config.json"))
      GTEST_SKIP() << GetParam() << " is not on this machine";
  }
};

/// Logits of `decoded` further tokens, `rows` per launch, after a prompt.
std::vector<float> decode_after_prompt(LoadedModel& model, std::span<const int32_t> ids,
                                       size_t rows) {
  const ScopedSequence sequence = open_sequence(model);
  run_chunks(model, sequence.id(), ids.first(ids.size() - kDecoded), ids.size(),
             ops::Role::kPrefill);
  return run_chunks(model, sequence.id(), ids.last(kDecoded), rows, ops::Role::kDecode);
}

TEST_P(CudaEngineTest, GoldenSet) {
  EngineOptions options;
  options.model_dir = GetParam();
  options.device = "cuda";
  const Result<VerifyReport> report = verify_golden(options, "");
  ASSERT_TRUE(report) << report.error().message();
  std::printf("%s\n%s", GetParam(), all_rows(*report).c_str());
  EXPECT_TRUE(report->passed()) << failures(*report);
  if (GetParam() != std::string(kMicro)) return;
  for (const VerifyRow& row : report->rows) {
    if (row.name == "text.logits") {
      EXPECT_LE(row.value, kMicroLogits);
    }
  }
}

TEST_P(CudaEngineTest, RowsOfALaunchHaveTheBitsOfOneRow) {
  const auto model = load(GetParam());
  ASSERT_NE(model, nullptr);
  const auto ids = sample_ids(*model, kTokens, 1);
  const auto want = decode_after_prompt(*model, ids, 1);
  for (const size_t rows : {2, 3, 4, 5, 6})
    EXPECT_EQ(decode_after_prompt(*model, ids, rows), want) << rows << " rows a launch";
}

TEST_P(CudaEngineTest, ASequenceInABatchHasTheBitsOfItAlone) {
  const auto model = load(GetParam());
  ASSERT_NE(model, nullptr);
  constexpr size_t kSequences = 5;
  const auto vocab = static_cast<size_t>(model->config().vocab_size);
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> want;
  std::vector<ScopedSequence> open;
  for (size_t index = 0; index < kSequences; ++index) {
    ids.push_back(sample_ids(*model, kTokens - 17 * index, index + 1));
    want.push_back(decode_after_prompt(*model, ids[index], 1));
    open.push_back(open_sequence(*model));
    run_chunks(*model, open[index].id(),
               std::span<const int32_t>(ids[index]).first(ids[index].size() - kDecoded), kTokens,
               ops::Role::kPrefill);
  }
  for (size_t step = 0; step < kDecoded; ++step) {
    std::vector<SequenceRows> work;
    for (size_t index = 0; index < kSequences; ++index)
      work.push_back(
          {open[index].id(),
           std::span<const int32_t>(ids[index]).subspan(ids[index].size() - kDecoded + step, 1)});
    const auto logits = run_rows(*model, work, ops::Role::kDecode);
    for (size_t index = 0; index < kSequences; ++index) {
      const std::vector<float> got(logits.begin() + static_cast<ptrdiff_t>(index * vocab),
                                   logits.begin() + static_cast<ptrdiff_t>((index + 1) * vocab));
      const auto at = want[index].begin() + static_cast<ptrdiff_t>(step * vocab);
      ASSERT_TRUE(std::equal(got.begin(), got.end(), at))
          << "sequence " << index << ", step " << step;
    }
  }
}

TEST_P(CudaEngineTest, RecordedStepsEqualDirectLaunches) {
  std::vector<float> want;
  for (const bool record : {false, true})
    for (const bool overlap : {false, true}) {
      const auto model = load(GetParam(), [&](EngineOptions& options) {
        options.record_steps = record;
        options.overlap_kernels = overlap;
      });
      ASSERT_NE(model, nullptr);
      const auto got = decode_after_prompt(*model, sample_ids(*model, kTokens, 1), 1);
      if (want.empty()) want = got;
      EXPECT_EQ(got, want) << "recorded " << record << ", overlapped " << overlap;
    }
}

TEST_P(CudaEngineTest, StepsOfAnEarlierModelAreNotReplayed) {
  const auto model = load(GetParam());
  ASSERT_NE(model, nullptr);
  const auto ids = sample_ids(*model, kTokens, 1);
  const auto want = decode_after_prompt(*model, ids, 1);
  for (int round = 0; round < 3; ++round) {
    model->replace_ops(model->ops());  // new buffers, perhaps where the old ones were
    EXPECT_EQ(decode_after_prompt(*model, ids, 1), want) << "round " << round;
  }
}

TEST_P(CudaEngineTest, ForkSnapshotAndFileContinueBitForBit) {
  const auto model = load(GetParam());
  ASSERT_NE(model, nullptr);
  constexpr size_t kCut = 141;  // in the middle of a block, a page and a GDN chunk
  const auto ids = sample_ids(*model, kTokens, 4);
  const ScopedSequence plain = open_sequence(*model);
  run_chunks(*model, plain.id(), std::span<const int32_t>(ids).first(kCut), kCut,
             ops::Role::kPrefill);
  const ScopedSequence forked(model->store(), model->store().fork(plain.id()).value());
  const auto snapshot = model->store().snapshot(plain.id());
  const std::string path = testing::TempDir() + "tessera_cuda.state";
  ASSERT_TRUE(save_state_file(*snapshot, model->state_identity(), path));
  const auto rest = std::span<const int32_t>(ids).subspan(kCut, kDecoded);
  const auto want = run_chunks(*model, plain.id(), rest, 1, ops::Role::kDecode);
  EXPECT_EQ(run_chunks(*model, forked.id(), rest, 1, ops::Role::kDecode), want) << "fork";
  auto loaded = load_state_file(path, model->state_identity(), model->store().shared_pool());
  ASSERT_TRUE(loaded) << loaded.error().message();
  const ScopedSequence from_file(model->store(), model->store().restore(**loaded).value());
  EXPECT_EQ(run_chunks(*model, from_file.id(), rest, 1, ops::Role::kDecode), want) << "file";
  std::remove(path.c_str());
}

TEST_P(CudaEngineTest, Fp8CachesStayNearBf16Ones) {
  const auto plain = load(GetParam());
  const auto narrow =
      load(GetParam(), [](EngineOptions& options) { options.cache_type = CacheType::kF8; });
  ASSERT_NE(plain, nullptr);
  ASSERT_NE(narrow, nullptr);
  const auto ids = sample_ids(*plain, kTokens, 5);
  const auto want = decode_after_prompt(*plain, ids, 1), got = decode_after_prompt(*narrow, ids, 1);
  double error = 0, norm = 0;
  for (size_t index = 0; index < want.size(); ++index) {
    error += std::pow(double{got[index]} - double{want[index]}, 2);
    norm += std::pow(double{want[index]}, 2);
  }
  constexpr double kF8Error = 0.3;  // three mantissa bits, and blocks that swap places
  EXPECT_LE(std::sqrt(error / norm), kF8Error);
  EXPECT_GT(error, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaEngineTest, testing::Values(kNano, kMicro),
                         [](const auto& model) {
                           return std::string(model.param) == kNano ? "nano" : "micro";
                         });

/// Prompts up to the last token of the released context, on the released geometry.
TEST(CudaLongContext, PromptsReachTheEndOfTheContext) {
  if (const std::string reason = cuda::why_unusable(0); !reason.empty())
    GTEST_SKIP() << "no CUDA device: " << reason;
  constexpr int kContext = 262144, kGrid = 262080;
  SyntheticModel synthetic = make_synthetic_model(SyntheticWeights::kBf16, 0);
  synthetic.config.max_positions = kContext;
  EngineOptions options;
  options.device = "cuda";
  options.max_sequences = 2;
  auto model = LoadedModel::from_parts(
      {.config = synthetic.config, .weights = std::move(synthetic.weights)}, options);
  ASSERT_TRUE(model) << model.error().message();
  const auto ids = sample_ids(**model, kContext, 6);
  const std::span<const int32_t> all(ids);
  const ScopedSequence base = open_sequence(**model);
  ASSERT_TRUE((*model)->prefill(base.id(), all.first(kGrid)));
  std::vector<float> logits(static_cast<size_t>((*model)->config().vocab_size));
  for (const int length : {262140, 262141, 262142, 262143, 262144}) {
    const ScopedSequence prompt((*model)->store(), (*model)->store().fork(base.id()).value());
    const auto rest = all.subspan(kGrid, static_cast<size_t>(length - kGrid));
    ASSERT_TRUE((*model)->prefill(prompt.id(), rest)) << length;
    (*model)->logits(0, 1, logits.data());
    EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float value) {
      return std::isfinite(value);
    })) << length;
  }
}

TEST(CudaTrainedModel, TextsEqualTheReference) {
  if (const std::string reason = cuda::why_unusable(0); !reason.empty())
    GTEST_SKIP() << "no CUDA device: " << reason;
  EngineOptions options;
  options.model_dir = "models/tiny";
  options.device = "cuda";
  const Result<VerifyReport> report = verify_reference(options, "models/tiny/reference.json");
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(report->passed()) << failures(*report);
}

}  // namespace
}  // namespace tessera::test
