// SPDX-License-Identifier: Apache-2.0
// The law of the draws: a chi-square test against the distribution computed by full sorting.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "core/philox.h"
#include "runtime/sampler_fixture.h"
#include "support/chi_square.h"

namespace tessera {
namespace {

constexpr int kVocab = 50;
constexpr int kDraws = 10000;
constexpr uint64_t kLogitSeed = 99;

struct Setting {
  const char* name;
  SamplingParams params;
};

const std::vector<int32_t> kPrompt = {3, 4, 4, 5, 20};
const std::vector<int32_t> kGenerated = {4, 6, 6, 6, 21};

std::vector<float> some_logits() {
  std::vector<float> logits;
  for (int token = 0; token < kVocab; ++token) {
    const auto position = static_cast<uint64_t>(token);
    const double draw = philox_uniform(kLogitSeed, position, DrawPurpose::kWeights);
    logits.push_back(static_cast<float>(8.0 * draw - 4.0));
  }
  return logits;
}

struct Scored {
  int token;
  double logit;
  double probability;
};

void normalise(std::vector<Scored>& scored) {
  double sum = 0;
  for (Scored& one : scored) sum += one.probability = std::exp(one.logit);
  for (Scored& one : scored) one.probability /= sum;
}

/// Probabilities of all tokens, each setting applied as its definition says.
std::vector<double> expected_law(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<Scored> scored;
  for (int token = 0; token < kVocab; ++token) {
    double logit = logits[static_cast<size_t>(token)];
    for (const auto& [id, bias] : params.logit_bias)
      if (id == token) logit += bias;
    const auto generated = std::count(kGenerated.begin(), kGenerated.end(), token);
    const auto prompted = std::count(kPrompt.begin(), kPrompt.end(), token);
    if (generated + prompted > 0)
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.frequency_penalty * static_cast<double>(generated);
    logit -= generated > 0 ? params.presence_penalty : 0.0F;
    scored.push_back({token, logit / params.temperature, 0});
  }
  std::sort(scored.begin(), scored.end(),
            [](const Scored& left, const Scored& right) { return left.logit > right.logit; });
  if (params.top_k > 0 && params.top_k < kVocab) scored.resize(static_cast<size_t>(params.top_k));
  normalise(scored);
  double before = 0;
  std::vector<Scored> nucleus;
  for (const Scored& one : scored) {
    if (before < params.top_p) nucleus.push_back(one);
    before += one.probability;
  }
  normalise(nucleus);
  const double least = nucleus.front().probability * params.min_p;
  std::erase_if(nucleus, [least](const Scored& one) { return one.probability < least; });
  normalise(nucleus);
  std::vector<double> law(kVocab, 0.0);
  for (const Scored& one : nucleus) law[static_cast<size_t>(one.token)] = one.probability;
  return law;
}

class SamplerLaw : public testing::TestWithParam<Setting> {};

TEST_P(SamplerLaw, DrawsFollowTheDefinition) {
  const SamplingParams& params = GetParam().params;
  const std::vector<float> logits = some_logits();
  Sampler sampler =
      Sampler::make(params, {.vocab_size = kVocab, .valid_vocab = kVocab}, kPrompt).value();
  for (const int32_t token : kGenerated) sampler.accept(token);
  std::vector<int> counts(kVocab, 0);
  for (int draw = 0; draw < kDraws; ++draw)
    ++counts[static_cast<size_t>(test::sample(sampler, logits, draw).value().token)];

  const std::vector<double> law = expected_law(logits, params);
  test::ChiSquare chi_square;
  for (size_t token = 0; token < law.size(); ++token)
    chi_square.add(law[token] * kDraws, counts[token]);
  chi_square.judge();
}

INSTANTIATE_TEST_SUITE_P(
    Settings, SamplerLaw,
    testing::Values(Setting{"Plain", {}}, Setting{"OtherSeed", {.seed = 0xFFFFFFFFFFFFFFFFULL}},
                    Setting{"Cold", {.temperature = 0.5F}}, Setting{"Hot", {.temperature = 3.0F}},
                    Setting{"TopK", {.top_k = 7}}, Setting{"TopKAboveVocabulary", {.top_k = 1000}},
                    Setting{"TopP", {.top_p = 0.8F}}, Setting{"MinP", {.min_p = 0.1F}},
                    Setting{"TopKThenTopP", {.top_k = 10, .top_p = 0.6F}},
                    Setting{"TopPThenMinP", {.top_p = 0.9F, .min_p = 0.2F}},
                    Setting{"Repetition", {.repetition_penalty = 1.7F}},
                    Setting{"Presence", {.presence_penalty = 1.5F}},
                    Setting{"Frequency", {.frequency_penalty = 0.7F}},
                    Setting{"Reward", {.repetition_penalty = 0.6F, .presence_penalty = -1.0F}},
                    Setting{"Bias", {.logit_bias = {{1, 3.0F}, {2, -2.0F}, {1, 0.5F}}}},
                    Setting{"Everything",
                            {.temperature = 0.7F,
                             .top_k = 30,
                             .top_p = 0.95F,
                             .min_p = 0.01F,
                             .repetition_penalty = 1.1F,
                             .presence_penalty = 0.5F,
                             .frequency_penalty = 0.2F,
                             .logit_bias = {{6, 2.0F}},
                             .seed = 5}}),
    [](const auto& setting) { return std::string(setting.param.name); });

}  // namespace
}  // namespace tessera
