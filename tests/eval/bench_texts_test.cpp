// SPDX-License-Identifier: Apache-2.0
// Every sequence of a bench has a prompt of its own, the same one in every run.
#include "eval/bench_texts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tessera {
namespace {

constexpr int kVocab = 1000;
constexpr int kPrompts = 8;

TEST(BenchTexts, PromptsOfAKindDiffer) {
  const auto texts = bench_texts("models/tiny", kVocab, {64}, kPrompts);
  ASSERT_TRUE(texts) << texts.error().message();
  ASSERT_EQ(texts->size(), 3U);
  EXPECT_EQ((*texts)[0].name, "counting");
  EXPECT_EQ((*texts)[1].name, "prose");
  EXPECT_EQ((*texts)[2].name, "random");
  for (const BenchText& text : *texts) {
    const std::set<std::vector<int32_t>> different(text.prompts.begin(), text.prompts.end());
    EXPECT_EQ(different.size(), static_cast<size_t>(kPrompts)) << text.name;
  }
  EXPECT_TRUE((*texts)[0].sampling.greedy());
}

TEST(BenchTexts, WithoutATokenizerThereAreRandomIdsOnly) {
  const auto texts = bench_texts("", kVocab, {16, 32}, 1);
  ASSERT_TRUE(texts);
  ASSERT_EQ(texts->size(), 2U);
  EXPECT_EQ((*texts)[0].prompts.front().size(), 16U);
  EXPECT_EQ((*texts)[1].prompts.front().size(), 32U);
}

TEST(BenchTexts, RandomIdsAreFixedAndWithinTheVocabulary) {
  const auto ids = random_ids(256, kVocab, 3);
  EXPECT_EQ(ids, random_ids(256, kVocab, 3));
  EXPECT_NE(ids, random_ids(256, kVocab));
  EXPECT_TRUE(
      std::all_of(ids.begin(), ids.end(), [](int32_t id) { return id >= 0 && id < kVocab; }));
}

}  // namespace
}  // namespace tessera
