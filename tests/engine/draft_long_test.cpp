// SPDX-License-Identifier: Apache-2.0
// Many texts, and contexts far beyond the selection budget: every depth gives the plain text.
#include <gtest/gtest.h>

#include "tests/engine/engine_harness.h"
#include "tests/engine/setups.h"

namespace tessera::test {
namespace {

constexpr int kMaxDraft = 5;

Request make(int index, int prompt_tokens, int tokens, int draft) {
  // Half of them greedy, half seeded with filters and penalties.
  const bool greedy = index % 2 == 0;
  Request request = request_of(prompt_of(prompt_tokens, index), greedy ? 0.0F : 0.9F,
                               static_cast<uint64_t>(index), tokens);
  if (!greedy) {
    request.sampling.top_p = 0.95F;
    request.sampling.frequency_penalty = index % 4 == 1 ? 0.3F : 0.0F;
  }
  request.draft = draft;
  return request;
}

class DraftLongTest : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_skipped(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
    if (std::string(GetParam().model) != "models/tiny")
      GTEST_SKIP() << "texts and contexts of the trained model";
  }
};

TEST_P(DraftLongTest, FortyTextsAtEveryDepthInBatchesOfEight) {
  const auto engine = load_engine(options_of(GetParam()));
  ASSERT_NE(engine, nullptr);
  constexpr int kTexts = 40, kTokens = 200, kTogether = 8;
  for (int first = 0; first < kTexts; first += kTogether) {
    std::vector<std::vector<int32_t>> plain;
    for (int shift = 0; shift <= kMaxDraft + 1; ++shift) {
      std::vector<Generation> together;
      for (int index = first; index < first + kTogether; ++index) {
        // Neighbours draft to different depths, and each text sees all of them; 0 comes first.
        const int draft = shift == 0 ? 0 : (index + shift) % (kMaxDraft + 2) - 1;
        together.push_back(std::move(*engine->submit(make(index, 16 + 5 * index, kTokens, draft))));
      }
      for (size_t at = 0; at < together.size(); ++at) {
        const Output output = drain(together[at]);
        if (shift == 0)
          plain.push_back(output.tokens);
        else
          ASSERT_EQ(output.tokens, plain[at]) << first + static_cast<int>(at) << " " << shift;
      }
    }
  }
}

TEST_P(DraftLongTest, ContextsBeyondFourThousandTokens) {
  const auto engine = load_engine(options_of(GetParam(), 6000));
  ASSERT_NE(engine, nullptr);
  for (const int index : {0, 1}) {
    const Output plain = run(*engine, make(index, 4300 + index, 150, 0));
    for (const int draft : {1, 3, kMaxDraft, kDraftAuto})
      EXPECT_EQ(run(*engine, make(index, 4300 + index, 150, draft)).tokens, plain.tokens)
          << index << " draft " << draft;
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, DraftLongTest, testing::ValuesIn(draft_setups()), setup_name);

}  // namespace
}  // namespace tessera::test
