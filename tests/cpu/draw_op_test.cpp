// SPDX-License-Identifier: Apache-2.0
// Draws of a round are those of `sample`, bit for bit, whatever was in their results before.
#include <algorithm>
#include <cstring>

#include "cpu/op_fixture.h"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int kVocabs[] = {1, 33, 1001, 20001, 24576};

ops::SampleRow some_settings(Random& random, int vocab, size_t row) {
  constexpr float kTemperatures[] = {0, 1, 0.3F, 5};
  constexpr int kTopK[] = {0, 20, 1, 200, 5000};
  constexpr float kTopP[] = {1, 0.95F, 0.5F};
  constexpr float kMinP[] = {0, 0, 0.05F};
  return {.temperature = kTemperatures[row % std::size(kTemperatures)],
          .top_k = kTopK[row % std::size(kTopK)],
          .top_p = kTopP[row % std::size(kTopP)],
          .min_p = kMinP[row / 2 % std::size(kMinP)],
          .valid_vocab = row % 3 == 2 ? std::max(1, vocab - vocab / 3) : vocab,
          .seed = static_cast<uint64_t>(random.below(1 << 30)),
          .position = random.below(300000),
          .top_logprobs = static_cast<int>(row % 8) - 1};
}

class DrawOpTest : public OpTest {
 protected:
  /// Results lie between guards.
  std::vector<ops::SampledToken> draw(int vocab, const std::vector<float>& logits,
                                      const std::vector<ops::SampleRow>& rows, bool best_only) {
    Memory& memory = ops_->memory();
    const MemoryBlock values(memory, logits.size() * sizeof(float));
    const MemoryBlock settings(memory, rows.size() * sizeof(rows[0]));
    std::vector<ops::SampledToken> results(rows.size() + 2);
    const size_t bytes = results.size() * sizeof(results[0]);
    const std::vector<std::byte> stale(bytes, std::byte{0xA5});
    const MemoryBlock block(memory, bytes);
    memory.copy_in(values.data(), logits.data(), logits.size() * sizeof(float));
    memory.copy_in(settings.data(), rows.data(), rows.size() * sizeof(rows[0]));
    memory.copy_in(block.data(), stale.data(), bytes);
    ops_->draw({.logits = reinterpret_cast<const float*>(values.data()),
                .vocab = vocab,
                .rows = static_cast<int>(rows.size()),
                .best_only = best_only,
                .settings = reinterpret_cast<const ops::SampleRow*>(settings.data()),
                .results = reinterpret_cast<ops::SampledToken*>(block.data()) + 1});
    memory.copy_out(results.data(), block.data(), bytes);
    for (const ops::SampledToken& guard : {results.front(), results.back()})
      EXPECT_EQ(std::memcmp(&guard, stale.data(), sizeof guard), 0);
    return {results.begin() + 1, results.end() - 1};
  }

  void expect_like_sample(int vocab, const std::vector<float>& logits,
                          const std::vector<ops::SampleRow>& rows, bool best_only) {
    std::vector<ops::SampledToken> want(rows.size());
    ops_->sample({.logits = logits.data(), .vocab = vocab, .rows = rows, .results = want});
    const auto got = draw(vocab, logits, rows, best_only);
    for (size_t row = 0; row < rows.size(); ++row)
      ASSERT_EQ(std::memcmp(&got[row], &want[row], sizeof want[row]), 0)
          << "vocabulary " << vocab << " row " << row << ": token " << got[row].token
          << ", expected " << want[row].token;
  }
};

TEST_P(DrawOpTest, DrawsWhatSampleDraws) {
  Random random(303);
  for (const int vocab :
       sized<std::vector<int>>({std::begin(kVocabs), std::end(kVocabs)}, {33, 20001})) {
    const auto width = static_cast<size_t>(vocab);
    const size_t count = vocab > 20000 ? sized<size_t>(24, 3) : sized<size_t>(16 * 6, 12);
    std::vector<float> logits(count * width);
    for (float& logit : logits) logit = random.below(50) == 0 ? -kInf : 2 * random.normal();
    std::vector<ops::SampleRow> rows;
    for (size_t row = 0; row < count; ++row) {
      rows.push_back(some_settings(random, vocab, row));
      logits[row * width] = 1;  // never all masked
    }
    ASSERT_NO_FATAL_FAILURE(expect_like_sample(vocab, logits, rows, false));
    logits[width / 2] = kNan;
    logits[2 * width - 1] = kInf;
    std::fill_n(logits.begin() + static_cast<std::ptrdiff_t>(2 * width), width, -kInf);
    ASSERT_NO_FATAL_FAILURE(expect_like_sample(vocab, logits, rows, false));
    for (ops::SampleRow& row : rows) row.temperature = 0, row.top_logprobs = -1;
    ASSERT_NO_FATAL_FAILURE(expect_like_sample(vocab, logits, rows, true));
    ASSERT_NO_FATAL_FAILURE(expect_like_sample(vocab, logits, rows, false));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, DrawOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
