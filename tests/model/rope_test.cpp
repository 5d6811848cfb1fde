// SPDX-License-Identifier: Apache-2.0
// Rotary frequencies, axes and YaRN. Expected YaRN values were computed in double precision from
// the formulas of the YaRN paper (Peng et al., 2023) as the reference library applies them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "config_edit.h"
#include "model/config.h"

namespace tessera {
namespace {

using test::released_config;
using test::with;
using test::without;

constexpr const char* kRope = "/text_config/rope_parameters";
constexpr double kUlps = 4 * 1.2e-7;  // a few float roundings, relative

ModelConfig parsed(const std::string& json) {
  auto config = parse_model_config(json, "config.json");
  EXPECT_TRUE(config) << config.error().message();
  return config ? std::move(*config) : ModelConfig{};
}

void expect_close(double found, double expected) {
  EXPECT_NEAR(found, expected, kUlps * std::abs(expected));
}

std::string yarn(const char* more) {
  return with(released_config(), kRope,
              std::string(R"({"rope_type":"yarn","rope_theta":10000000,"mrope_section":[11,11,10],
                             "partial_rotary_factor":0.25)") +
                  more + "}");
}

TEST(Rope, PlainFrequenciesAndInterleavedAxes) {
  const RopeConfig rope = parsed(released_config()).rope;
  ASSERT_EQ(rope.inv_freq.size(), 32U);
  EXPECT_EQ(rope.attention_scale, 1.0F);
  for (size_t index = 0; index < rope.inv_freq.size(); ++index) {
    expect_close(rope.inv_freq[index], std::pow(1e7, -static_cast<double>(index) / 32));
    const int32_t expected = index % 3 == 1 && index < 33   ? 1
                             : index % 3 == 2 && index < 30 ? 2
                                                            : 0;
    EXPECT_EQ(rope.axis[index], expected) << index;
  }
  EXPECT_EQ(std::ranges::count(rope.axis, 1), 11);
  EXPECT_EQ(std::ranges::count(rope.axis, 2), 10);
}

TEST(Rope, YarnKeepsFastAndStretchesSlowFrequencies) {
  const ModelConfig config =
      parsed(yarn(R"(,"factor":4.0,"original_max_position_embeddings":262144)"));
  const std::vector<float>& inv_freq = config.rope.inv_freq;
  expect_close(inv_freq[0], 1.0);
  expect_close(inv_freq[10], 0.006493816315762114);   // before the ramp 14..22
  expect_close(inv_freq[15], 0.0004742398226801046);  // on it
  expect_close(inv_freq[18], 7.217387404309113e-05);
  expect_close(inv_freq[31], 4.137042749857954e-08);  // after it: divided by 4
  expect_close(config.rope.attention_scale, 1.138629436111989);
  EXPECT_EQ(config.max_positions, 1048576);
}

TEST(Rope, YarnOptions) {
  const std::string base = R"(,"factor":4.0,"original_max_position_embeddings":262144)";
  expect_close(parsed(yarn((base + R"(,"truncate":false)").c_str())).rope.inv_freq[18],
               6.816236923549041e-05);
  EXPECT_EQ(parsed(yarn((base + R"(,"attention_factor":1.5)").c_str())).rope.attention_scale, 1.5F);
  expect_close(
      parsed(yarn((base + R"(,"mscale":0.707,"mscale_all_dim":1.0)").c_str())).rope.attention_scale,
      0.964326914892074);
}

TEST(Rope, YarnNeedsItsFactor) {
  const ModelConfig whole = parsed(yarn(R"(,"factor":4.0)"));
  EXPECT_EQ(whole.max_positions, 1048576);  // of max_position_embeddings
  const auto guessed =
      parse_model_config(with(yarn(R"(,"original_max_position_embeddings":262144)"),
                              "/text_config/max_position_embeddings", "1048576"),
                         "c");
  ASSERT_FALSE(guessed);
  EXPECT_THAT(guessed.error().where, testing::HasSubstr("factor"));
  EXPECT_EQ(guessed.error().found, "no such key");
}

TEST(Rope, OlderSpellings) {
  const ModelConfig released = parsed(released_config());
  std::string json = without(released_config(), "/text_config", "rope_parameters");
  json = with(json, "/text_config/rope_theta", "1e7");
  EXPECT_EQ(parsed(json).rope.inv_freq, released.rope.inv_freq);
  EXPECT_EQ(parsed(json).rope.axis, released.rope.axis);
  json = with(without(released_config(), kRope, "rope_type"), "/text_config/rope_scaling",
              R"({"type":"yarn","factor":4.0,"original_max_position_embeddings":262144})");
  EXPECT_EQ(parsed(json).rope.inv_freq, parsed(yarn(R"(,"factor":4.0)")).rope.inv_freq);
}

TEST(Rope, TwoObjectsMustNotContradictEachOther) {
  const auto beside = [](const char* scaling) {
    return parse_model_config(with(released_config(), "/text_config/rope_scaling", scaling), "c");
  };
  EXPECT_TRUE(beside(R"({"type":"mrope","rope_theta":1e7,"mrope_section":[11,11,10]})"));
  for (const auto& [scaling, key] :
       {std::pair(R"({"type":"yarn","factor":4.0})", "rope_scaling.rope_type"),
        std::pair(R"({"rope_theta":10000})", "rope_scaling.rope_theta"),
        std::pair(R"({"mrope_section":[10,11,11]})", "rope_scaling.mrope_section")}) {
    const auto config = beside(scaling);
    ASSERT_FALSE(config) << scaling;
    EXPECT_THAT(config.error().where, testing::HasSubstr(key));
    EXPECT_THAT(config.error().expected, testing::HasSubstr("rope_parameters"));
  }
}

TEST(Rope, ImpossibleYarnIsRefused) {
  for (const char* more : {R"(,"factor":0.5)", R"(,"factor":"4")", R"(,"factor":4,"beta_fast":-1)",
                           R"(,"factor":4,"original_max_position_embeddings":0)",
                           R"(,"factor":4,"attention_factor":-1)"}) {
    EXPECT_FALSE(parse_model_config(yarn(more), "c")) << more;
  }
}

}  // namespace
}  // namespace tessera
