// SPDX-License-Identifier: Apache-2.0
// Single decisions of the sampler: ties, penalties by hand, extremes, masks, log-probabilities.
#include "runtime/sampler.h"

#include <gtest/gtest.h>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "runtime/sampler_fixture.h"

namespace tessera {
namespace {

using test::sample;
using Logits = std::vector<float>;
using Ids = std::vector<int32_t>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

Sampler make(const SamplingParams& params, size_t vocab, const Ids& prompt = {},
             int top_logprobs = -1) {
  const int size = static_cast<int>(vocab);
  return Sampler::make(params,
                       {.vocab_size = size, .valid_vocab = size, .top_logprobs = top_logprobs},
                       prompt)
      .value();
}

/// Greedy choice after `generated` tokens.
int32_t choice(SamplingParams params, const Logits& logits, const Ids& prompt = {},
               const Ids& generated = {}) {
  params.temperature = 0.0F;
  Sampler sampler = make(params, logits.size(), prompt);
  for (const int32_t token : generated) sampler.accept(token);
  return sample(sampler, logits, 0).value().token;
}

/// Every token that 500 draws give.
std::set<int32_t> drawn(const SamplingParams& params, const Logits& logits) {
  constexpr int kDraws = 500;
  Sampler sampler = make(params, logits.size());
  std::set<int32_t> tokens;
  for (int position = 0; position < kDraws; ++position)
    tokens.insert(sample(sampler, logits, position).value().token);
  return tokens;
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheBest) {
  EXPECT_EQ(choice({}, {1, 3, 2, 3}), 1);
  EXPECT_EQ(choice({}, {5, 5, 5}), 0);
  EXPECT_EQ(choice({}, {-0.0F, 0.0F}), 0);
  EXPECT_EQ(choice({}, {-kInf, -kLargest}), 1);
  EXPECT_EQ(choice({}, {-7}), 0);
}

TEST(Sampler, TopKKeepsExactlyKTiesToTheLowestId) {
  EXPECT_EQ(drawn({.top_k = 1}, {1, 3, 2, 3}), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.top_k = 3}, {2, 5, 2, 2, 5, 2}), (std::set<int32_t>{0, 1, 4}));
  EXPECT_EQ(drawn({.top_k = 6}, {2, 5, 2, 2, 5, 2}).size(), 6U);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 1/2, 1/4, 1/8, 1/8.
  const float half = std::log(2.0F);
  const Logits logits = {half, 2 * half, 0, 0};
  EXPECT_EQ(drawn({.top_p = 1e-6F}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.top_p = 0.49F}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.top_p = 0.51F}, logits), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(drawn({.top_p = 0.76F}, logits), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(drawn({.top_p = 0.9F}, logits), (std::set<int32_t>{0, 1, 2, 3}));
}

TEST(Sampler, TopPReachesFarIntoAFlatDistribution) {
  constexpr size_t kVocab = 20000;
  constexpr int kDraws = 2000;
  Sampler sampler = make({.top_p = 0.25F}, kVocab);
  const Logits logits(kVocab, 1.5F);
  int32_t highest = 0;
  for (int position = 0; position < kDraws; ++position)
    highest = std::max(highest, sample(sampler, logits, position).value().token);
  EXPECT_LT(highest, 5000);
  EXPECT_GT(highest, 4950);  // missed with probability 0.99^2000
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  const Logits logits = {0, std::log(10.0F), std::log(4.9F), std::log(5.1F), std::log(10.0F)};
  EXPECT_EQ(drawn({.min_p = 0.5F}, logits), (std::set<int32_t>{1, 3, 4}));
  EXPECT_EQ(drawn({.min_p = 1.0F}, logits), (std::set<int32_t>{1, 4}));
}

TEST(Sampler, RepetitionPenaltyByHand) {
  // 2 / 1.3 = 1.54 and 2 / 2 = 1; -1 * 1.4 = -1.4 and -1 * 2 = -2.
  EXPECT_EQ(choice({.repetition_penalty = 1.3F}, {2, 1.5F}, {0}), 0);
  EXPECT_EQ(choice({.repetition_penalty = 2.0F}, {2, 1.5F}, {0}), 1);
  EXPECT_EQ(choice({.repetition_penalty = 1.4F}, {-1, -1.5F}, {0}), 0);
  EXPECT_EQ(choice({.repetition_penalty = 2.0F}, {-1, -1.5F}, {0}), 1);
  // Applied once however often the token was seen, in the prompt or in the generated text.
  EXPECT_EQ(choice({.repetition_penalty = 1.3F}, {2, 1.5F}, {0, 0, 0}, {0, 0}), 0);
  EXPECT_EQ(choice({.repetition_penalty = 2.0F}, {2, 1.5F}, {}, {0}), 1);
  EXPECT_EQ(choice({.repetition_penalty = 2.0F}, {2, 1.5F}), 0);
}

TEST(Sampler, PresencePenaltyByHand) {
  EXPECT_EQ(choice({.presence_penalty = 0.4F}, {2, 1.5F}, {}, {0}), 0);
  EXPECT_EQ(choice({.presence_penalty = 0.6F}, {2, 1.5F}, {}, {0}), 1);
  EXPECT_EQ(choice({.presence_penalty = 0.4F}, {2, 1.5F}, {}, {0, 0, 0}), 0);
  EXPECT_EQ(choice({.presence_penalty = 0.6F}, {2, 1.5F}, {0, 0}), 0);
}

TEST(Sampler, FrequencyPenaltyByHand) {
  EXPECT_EQ(choice({.frequency_penalty = 0.2F}, {2, 1.5F}, {}, {0, 0}), 0);
  EXPECT_EQ(choice({.frequency_penalty = 0.2F}, {2, 1.5F}, {}, {0, 0, 0}), 1);
  EXPECT_EQ(choice({.frequency_penalty = 0.2F}, {2, 1.5F}, {0, 0, 0}), 0);
  EXPECT_EQ(choice({.frequency_penalty = -0.2F}, {1, 1.5F}, {}, {0, 0, 0}), 0);
}

TEST(Sampler, PenaltiesFollowBiasAndRepetitionComesFirst) {
  // (4 / 2) - 2 * 0.5 - 0.25 = 0.75
  const SamplingParams all{
      .repetition_penalty = 2.0F, .presence_penalty = 0.25F, .frequency_penalty = 0.5F};
  EXPECT_EQ(choice(all, {4, 0.7F}, {}, {0, 0}), 0);
  EXPECT_EQ(choice(all, {4, 0.8F}, {}, {0, 0}), 1);
  // (0 + 2) / 2 = 1
  const SamplingParams biased{.repetition_penalty = 2.0F, .logit_bias = {{0, 2.0F}}};
  EXPECT_EQ(choice(biased, {0, 0.9F}, {0}), 0);
  EXPECT_EQ(choice(biased, {0, 1.1F}, {0}), 1);
}

TEST(Sampler, BiasForcesAndForbids) {
  const Logits logits = {5, 1, 3, 2};
  EXPECT_EQ(drawn({.logit_bias = {{1, 1e9F}}}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.temperature = 100.0F, .logit_bias = {{0, -1e9F}}}, logits),
            (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(choice({.logit_bias = {{3, 1.5F}, {3, 1.6F}}}, logits), 3);
}

TEST(Sampler, ExtremeTemperatures) {
  const Logits logits = {1, 3, 2.999F, -5};
  EXPECT_EQ(drawn({.temperature = 1e-30F}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.temperature = std::numeric_limits<float>::denorm_min()}, logits),
            (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.temperature = 1e-30F}, {2, 7, 7}), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(drawn({.temperature = 100.0F}, logits).size(), 4U);
  EXPECT_EQ(drawn({}, {-kLargest, kLargest, 0}), (std::set<int32_t>{1}));
}

TEST(Sampler, SeedAndPositionDecideWhateverHappenedBefore) {
  constexpr int kPositions = 200;
  const Logits logits(30, 0.0F);
  Sampler forward = make({.seed = 11}, logits.size());
  Sampler backward = make({.seed = 11}, logits.size());
  Sampler other = make({.seed = 12}, logits.size());
  Ids first, second(kPositions), third;
  for (int position = 0; position < kPositions; ++position) {
    first.push_back(sample(forward, logits, position).value().token);
    third.push_back(sample(other, logits, position).value().token);
    const int mirrored = kPositions - 1 - position;
    second[static_cast<size_t>(mirrored)] = sample(backward, logits, mirrored).value().token;
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first, third);
}

TEST(Sampler, DroppedDraftsLeaveNoTrace) {
  const Logits logits = {2, 1.9F, 0};
  const SamplingParams params{.temperature = 0.0F, .presence_penalty = 1.0F};
  Sampler sampler = make(params, logits.size());
  EXPECT_EQ(sample(sampler, logits, 0).value().token, 0);
  EXPECT_EQ(sample(sampler, logits, 0).value().token, 0);
  sampler.accept(0);
  EXPECT_EQ(sample(sampler, logits, 1).value().token, 1);
}

TEST(Sampler, NotANumberIsAnErrorAndNeverTokenZero) {
  for (const float bad : {kNan, -kNan, kInf})
    for (const size_t index : {size_t{0}, size_t{3}, size_t{8}})
      for (const float temperature : {0.0F, 1.0F}) {
        Logits logits(9, 1.0F);
        logits[index] = bad;
        Sampler sampler = make({.temperature = temperature}, logits.size());
        const Result<Draw> draw = sample(sampler, logits, 17);
        ASSERT_FALSE(draw.has_value());
        EXPECT_EQ(draw.error().code, Errc::kNumerics);
        EXPECT_NE(draw.error().message().find("token " + std::to_string(index)), std::string::npos);
        EXPECT_NE(draw.error().where.find("17"), std::string::npos);
        logits[index] = 1.0F;
        EXPECT_TRUE(sample(sampler, logits, 17).has_value());
      }
}

TEST(Sampler, EveryTokenMaskedIsAnError) {
  for (const float temperature : {0.0F, 1.0F}) {
    Sampler sampler = make({.temperature = temperature}, 4);
    const Result<Draw> draw = sample(sampler, Logits(4, -kInf), 0);
    ASSERT_FALSE(draw.has_value());
    EXPECT_EQ(draw.error().code, Errc::kNumerics);
  }
}

TEST(Sampler, MaskedTokensAreNeverDrawn) {
  EXPECT_EQ(drawn({.temperature = 100.0F}, {-kInf, 1, -kInf, 1}), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(drawn({.top_k = 3}, {-kInf, 1, -kInf, -kInf}), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.top_p = 0.999F}, {-kInf, 1, -kInf, 1}), (std::set<int32_t>{1, 3}));
}

TEST(Sampler, OverflowingBiasIsAnError) {
  Sampler sampler = make({.logit_bias = {{1, kLargest}}}, 2);
  const Result<Draw> draw = sample(sampler, Logits{0, kLargest}, 0);
  ASSERT_FALSE(draw.has_value());
  EXPECT_EQ(draw.error().code, Errc::kNumerics);
}

TEST(Sampler, UnusedRowsAreIgnored) {
  Logits logits = {1, 2, 0, kNan, kInf, 50};
  for (const float temperature : {0.0F, 1.0F, 100.0F}) {
    Sampler sampler = Sampler::make({.temperature = temperature, .logit_bias = {{5, 100.0F}}},
                                    {.vocab_size = 6, .valid_vocab = 3, .top_logprobs = 6}, {})
                          .value();
    sampler.accept(5);
    for (int position = 0; position < 100; ++position) {
      const Draw draw = sample(sampler, logits, position).value();
      EXPECT_LT(draw.token, 3);
      EXPECT_EQ(draw.top.size(), 3U);
    }
  }
}

TEST(Sampler, LogprobsAreOfTheRawSoftmax) {
  const Logits logits = {std::log(1.0F), std::log(4.0F), std::log(2.0F), std::log(1.0F)};
  const SamplingParams params{.temperature = 0.0F, .logit_bias = {{3, 50.0F}}};
  Sampler sampler = make(params, logits.size(), {}, 3);
  const Draw draw = sample(sampler, logits, 0).value();
  EXPECT_EQ(draw.token, 3);
  EXPECT_NEAR(draw.logprob, std::log(1.0 / 8), 1e-6);
  ASSERT_EQ(draw.top.size(), 3U);
  EXPECT_EQ(draw.top[0].token, 1);
  EXPECT_EQ(draw.top[1].token, 2);
  EXPECT_EQ(draw.top[2].token, 0);
  EXPECT_NEAR(draw.top[0].logprob, std::log(4.0 / 8), 1e-6);
  EXPECT_NEAR(draw.top[1].logprob, std::log(2.0 / 8), 1e-6);
}

TEST(Sampler, LogprobsAsMuchAsAsked) {
  const Logits logits = {3000, 2000, -kInf};
  Sampler none = make({}, logits.size());
  EXPECT_EQ(sample(none, logits, 0).value().logprob, 0.0F);
  Sampler only = make({}, logits.size(), {}, 0);
  EXPECT_TRUE(sample(only, logits, 0).value().top.empty());
  Sampler many = make({}, logits.size(), {}, 10);
  const Draw draw = sample(many, logits, 0).value();
  ASSERT_EQ(draw.top.size(), 3U);
  EXPECT_EQ(draw.top[0].logprob, 0.0F);
  EXPECT_EQ(draw.top[1].logprob, -1000.0F);
  EXPECT_EQ(draw.top[2].logprob, -kInf);
}

TEST(Sampler, RefusesSettingsThatDoNotFit) {
  const auto code = [](const SamplingParams& params, const SamplerOptions& options) {
    const Result<Sampler> sampler = Sampler::make(params, options, {});
    return sampler ? Errc::kInternal : sampler.error().code;
  };
  EXPECT_EQ(code({.top_p = 0.0F}, {.vocab_size = 4, .valid_vocab = 4}), Errc::kInvalidArgument);
  EXPECT_EQ(code({}, {.vocab_size = 4, .valid_vocab = 0}), Errc::kInvalidArgument);
  EXPECT_EQ(code({}, {.vocab_size = 4, .valid_vocab = 5}), Errc::kInvalidArgument);
}

}  // namespace
}  // namespace tessera
