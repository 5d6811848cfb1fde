// SPDX-License-Identifier: Apache-2.0
// How rows of logits are spread over blocks.
#include "cuda/sample/sample_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::cuda {
namespace {

constexpr size_t kBaseBytes = size_t{34} << 10;
constexpr int kReleasedVocab = 248320;
constexpr GpuSpec kA100{.compute_major = 8,
                        .num_sms = 108,
                        .shared_bytes_per_block = 166912,
                        .l2_bytes = size_t{40} << 20};

SamplePlan plan_for(int vocab, const std::vector<ops::SampleRow>& rows,
                    const GpuSpec& gpu = kH200) {
  return plan_sample({.vocab = vocab, .rows = rows}, gpu, kBaseBytes);
}

const ops::SampleRow kGreedy{.temperature = 0};
const ops::SampleRow kDrawn{.temperature = 1};
const ops::SampleRow kEdited{.temperature = 0, .num_edits = 1};
const ops::SampleRow kListed{.temperature = 0, .top_logprobs = 0};

TEST(SamplePlan, SlicesCoverTheVocabulary) {
  for (const int vocab : {1, 5, 512, 16384, 16385, 20001, kReleasedVocab, kSampleMaxVocab}) {
    const SamplePlan plan = plan_for(vocab, {kGreedy});
    EXPECT_GE(plan.slice * plan.blocks, vocab);
    EXPECT_EQ(plan.slice % kSampleGrain, 0);
    EXPECT_EQ(plan.blocks, vocab > 16384 ? kSampleMaxBlocks : 1);
  }
}

TEST(SamplePlan, GreedyRowsTakeOnePass) {
  const SamplePlan plan = plan_for(kReleasedVocab, {kGreedy, kGreedy});
  EXPECT_TRUE(plan.best_only);
  EXPECT_FALSE(plan.in_shared);
  EXPECT_EQ(plan.shared_bytes, kBaseBytes);
  for (const ops::SampleRow& row : {kDrawn, kEdited, kListed})
    EXPECT_FALSE(plan_for(kReleasedVocab, {kGreedy, row}).best_only);
}

TEST(SamplePlan, TheReleasedVocabularyFitsIntoSharedMemory) {
  const SamplePlan plan = plan_for(kReleasedVocab, {kDrawn, kEdited});
  EXPECT_TRUE(plan.in_shared);
  EXPECT_FALSE(plan.copies);
  EXPECT_EQ(plan.shared_bytes, kBaseBytes + static_cast<size_t>(plan.slice) * sizeof(float));
  EXPECT_LE(plan.shared_bytes, kH200.shared_bytes_per_block);
}

TEST(SamplePlan, LongSlicesStayInPlaceAndEditsGoToACopy) {
  EXPECT_FALSE(plan_for(kReleasedVocab, {kDrawn}, kA100).in_shared);
  EXPECT_FALSE(plan_for(kReleasedVocab, {kDrawn}, kA100).copies);
  EXPECT_TRUE(plan_for(kReleasedVocab, {kEdited}, kA100).copies);
  EXPECT_EQ(plan_for(kReleasedVocab, {kDrawn}, kA100).blocks, 1);
}

}  // namespace
}  // namespace tessera::cuda
