// SPDX-License-Identifier: Apache-2.0
// The scores of the engine held against the logits of the model it runs.
#include <gtest/gtest.h>
#include <tessera/verify.h>

#include <cmath>

#include "core/logit_math.h"
#include "eval/verify_greedy.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/model_harness.h"
#include "tests/io/safetensors_writer.h"
#include "tests/io/temp_dir.h"

namespace tessera::test {
namespace {

constexpr const char* kNano = "models/nano";
constexpr size_t kTokens = 150;  // two pages and a part: three launches of the prefill
constexpr float kUlp = std::numeric_limits<float>::epsilon();

/// Weighted mean of the windows, as `tessera eval` defines it.
double mean_of_windows(LoadedModel& model, std::span<const int32_t> ids, size_t window) {
  double sum = 0;
  size_t scored = 0;
  for (size_t begin = 0; begin + 1 < ids.size(); begin += window) {
    const auto part = ids.subspan(begin, std::min(window, ids.size() - begin));
    const auto nll = mean_nll(model, part);
    EXPECT_TRUE(nll) << (nll ? "" : nll.error().message());
    sum += nll.value_or(NAN) * static_cast<double>(part.size() - 1);
    scored += part.size() - 1;
  }
  return sum / static_cast<double>(scored);
}

TEST(ScoreText, EqualsTheMeanOverTheModelsOwnLogits) {
  const auto model = load_model(kNano, OpsKind::kFast);
  ASSERT_NE(model, nullptr);
  const auto ids = sample_ids(*model, kTokens, 3);
  // 0: one window. Window of 32: the last has 22 tokens. Window of 149: one token is left over.
  for (const int max_context : {0, 33, 66, 150, 3}) {
    const auto engine = load_engine(kNano, max_context);
    ASSERT_NE(engine, nullptr);
    const auto score = score_text(*engine, ids);
    ASSERT_TRUE(score) << score.error().message();
    const size_t window = max_context == 0 ? kTokens : static_cast<size_t>(max_context) - 1;
    const double expected = mean_of_windows(*model, ids, window);
    // The engine hands out each log-probability as a float.
    EXPECT_NEAR(score->mean_nll, expected, kUlp * expected) << max_context;
    EXPECT_DOUBLE_EQ(score->perplexity, std::exp(score->mean_nll));
    const size_t windows = (kTokens - 1 + window - 1) / window;
    const size_t left_over = kTokens - (windows - 1) * window < window + 1 ? 0 : 1;
    EXPECT_EQ(static_cast<size_t>(score->tokens), kTokens - windows - left_over) << max_context;
  }
}

TEST(ScoreText, NeedsAContextThatScoresSomething) {
  const auto engine = load_engine(kNano, 2);
  ASSERT_NE(engine, nullptr);
  const auto score = score_text(*engine, {1, 2, 3, 4});
  ASSERT_FALSE(score);
  EXPECT_EQ(score.error().code, Errc::kContextLimit);
  EXPECT_EQ(score.error().found, "2");
  const auto short_text = score_text(*load_engine(kNano), {1});
  ASSERT_FALSE(short_text);
  EXPECT_EQ(short_text.error().code, Errc::kInvalidArgument);
}

TEST(ScoreText, PromptLogprobsBelongToTheirRows) {
  const auto model = load_model(kNano, OpsKind::kFast);
  const auto engine = load_engine(kNano);
  ASSERT_TRUE(model && engine);
  const auto ids = sample_ids(*model, kTokens, 4);
  const ScopedSequence sequence = open_sequence(*model);
  constexpr size_t kChunk = 64;
  const auto logits = run_chunks(*model, sequence.id(), ids, kChunk, ops::Role::kPrefill);
  const auto vocab = static_cast<size_t>(model->config().vocab_size);
  const auto of_row = [&](size_t row, int32_t token) {
    return static_cast<float>(
        log_probability(std::span(logits).subspan(row * vocab, vocab), token));
  };

  Request request = request_of(ids, 0, 0, 1);
  request.prompt_logprobs = true;
  const std::vector<float> scored = run(*engine, std::move(request)).last.prompt_logprobs;
  ASSERT_EQ(scored.size(), kTokens - 1);
  float shifted = 0;
  for (size_t row = 0; row + 1 < kTokens; ++row) {
    EXPECT_FLOAT_EQ(scored[row], of_row(row, ids[row + 1])) << row;
    shifted = std::max(shifted, std::fabs(scored[row] - of_row(row + 1, ids[row + 1])));
  }
  EXPECT_GT(shifted, 0.1F) << "neighbouring rows are too alike to notice a shift";
}

/// models/nano whose head has a row of the largest BF16: finite weights, a logit that overflows.
void write_overflowing_nano(const TempDir& dir) {
  constexpr uint16_t kLargest = 0x7F7F;
  const std::string weights = std::string(kNano) + "/model.safetensors";
  const auto file = MappedFile::open(weights).value();
  CheckpointImage image = checkpoint_image(parse_safetensors(file->bytes(), weights).value());
  TensorImage& head = image.at("lm_head.weight");
  const auto columns = static_cast<size_t>(head.shape.at(1));
  for (size_t column = 0; column < columns; ++column)
    std::memcpy(head.bytes.data() + column * sizeof(kLargest), &kLargest, sizeof(kLargest));
  dir.write("model.safetensors", safetensors_bytes(image));
  std::filesystem::copy_file(std::string(kNano) + "/config.json", dir.file("config.json"));
}

TEST(ScoreText, LogitsThatAreNotFiniteAreAnError) {
  const TempDir dir;
  write_overflowing_nano(dir);
  const auto model = load_model(dir.path(), OpsKind::kFast);
  const auto engine = load_engine(dir.path());
  ASSERT_TRUE(model && engine);
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  const auto expect_numerics = [](const auto& result) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Errc::kNumerics) << result.error().message();
  };
  expect_numerics(mean_nll(*model, ids));
  expect_numerics(compare_greedy(*model, ids, ids, {}, 1e-3));
  expect_numerics(greedy_continuation(*model, ids, 4));
  expect_numerics(score_text(*engine, ids));
}

TEST(MeanNll, NeedsTwoTokens) {
  const auto model = load_model(kNano, OpsKind::kFast);
  ASSERT_NE(model, nullptr);
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{}, std::vector<int32_t>{1}}) {
    const auto nll = mean_nll(*model, ids);
    ASSERT_FALSE(nll);
    EXPECT_EQ(nll.error().code, Errc::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tessera::test
