// SPDX-License-Identifier: Apache-2.0
// Every range of the sampling settings, at its ends and beyond them.
#include <gtest/gtest.h>
#include <tessera/sampling.h>
#include <cmath>
#include <limits>
#include <string>

namespace tessera {
namespace {

constexpr int kVocab = 10;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct FloatRange {
  const char* name;
  float SamplingParams::* setting;
  std::vector<float> good;
  std::vector<float> bad;
};

class FloatSetting : public testing::TestWithParam<FloatRange> {};

TEST_P(FloatSetting, AcceptsItsRangeOnly) {
  const FloatRange& range = GetParam();
  for (const float value : range.good) {
    SamplingParams params;
    params.*range.setting = value;
    EXPECT_TRUE(params.validate(kVocab).has_value()) << value;
  }
  std::vector<float> bad = range.bad;
  bad.insert(bad.end(), {kNan, kInf, -kInf});
  for (const float value : bad) {
    SamplingParams params;
    params.*range.setting = value;
    const Result<void> valid = params.validate(kVocab);
    ASSERT_FALSE(valid.has_value()) << value;
    EXPECT_EQ(valid.error().code, Errc::kInvalidArgument);
    EXPECT_EQ(valid.error().where, range.name);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, FloatSetting,
    testing::Values(
        FloatRange{"temperature", &SamplingParams::temperature, {0, 1e-30F, 1, 100}, {-1, 100.5F}},
        FloatRange{"top_p", &SamplingParams::top_p, {1e-6F, 0.5F, 1}, {0, -0.1F, 1.01F}},
        FloatRange{"min_p", &SamplingParams::min_p, {0, 0.5F, 1}, {-0.1F, 1.01F}},
        FloatRange{"repetition_penalty",
                   &SamplingParams::repetition_penalty,
                   {0.5F, 1, 100},
                   {0, -1, 101}},
        FloatRange{
            "presence_penalty", &SamplingParams::presence_penalty, {-2, 0, 2}, {-2.1F, 2.1F}},
        FloatRange{
            "frequency_penalty", &SamplingParams::frequency_penalty, {-2, 0, 2}, {-2.1F, 2.1F}}),
    [](const auto& setting) { return std::string(setting.param.name); });

TEST(SamplingParams, DefaultsAreValid) { EXPECT_TRUE(SamplingParams{}.validate(1).has_value()); }

TEST(SamplingParams, TopKIsNotNegative) {
  EXPECT_TRUE((SamplingParams{.top_k = std::numeric_limits<int>::max()}.validate(kVocab)));
  const Result<void> valid = SamplingParams{.top_k = -1}.validate(kVocab);
  ASSERT_FALSE(valid.has_value());
  EXPECT_EQ(valid.error().where, "top_k");
}

TEST(SamplingParams, BiasNamesTokensOfTheVocabulary) {
  const auto with = [](int32_t token, float bias) {
    return SamplingParams{.logit_bias = {{0, 1.0F}, {token, bias}}}.validate(kVocab);
  };
  EXPECT_TRUE(with(kVocab - 1, -100.0F).has_value());
  for (const int32_t token : {-1, kVocab}) {
    ASSERT_FALSE(with(token, 1.0F).has_value());
    EXPECT_EQ(with(token, 1.0F).error().found, std::to_string(token));
  }
  for (const float bias : {kNan, kInf, -kInf}) EXPECT_FALSE(with(1, bias).has_value());
}

}  // namespace
}  // namespace tessera
