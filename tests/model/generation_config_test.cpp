// SPDX-License-Identifier: Apache-2.0
// generation_config.json: defaults of the release, greedy files, damaged files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tessera/log.h>

#include "../io/temp_dir.h"
#include "model/config.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(GenerationConfig, ReleasedValues) {
  const auto defaults = parse_generation_config(
      R"({"bos_token_id":248044,"do_sample":true,"eos_token_id":[248046,248044],
          "pad_token_id":248044,"temperature":1.0,"top_k":20,"top_p":0.95})",
      "g");
  ASSERT_TRUE(defaults) << defaults.error().message();
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(248046, 248044));
  EXPECT_EQ(defaults->bos_token_id, 248044);
  EXPECT_EQ(defaults->pad_token_id, 248044);
  EXPECT_FLOAT_EQ(defaults->sampling.temperature, 1.0F);
  EXPECT_EQ(defaults->sampling.top_k, 20);
  EXPECT_FLOAT_EQ(defaults->sampling.top_p, 0.95F);
  EXPECT_FLOAT_EQ(defaults->sampling.min_p, 0.0F);
}

TEST(GenerationConfig, GreedyWithoutSamplingKeysOrWhenSwitchedOff) {
  EXPECT_TRUE(parse_generation_config("{}", "g")->sampling.greedy());
  EXPECT_TRUE(
      parse_generation_config(R"({"do_sample":false,"temperature":0.7})", "g")->sampling.greedy());
  EXPECT_FALSE(parse_generation_config(R"({"temperature":0.7})", "g")->sampling.greedy());
  EXPECT_FALSE(parse_generation_config(R"({"do_sample":true})", "g")->sampling.greedy());
}

TEST(GenerationConfig, RefusesValuesOutsideTheirRange) {
  for (const char* json :
       {R"({"temperature":-1})", R"({"temperature":"hot"})", R"({"top_p":0})", R"({"top_p":1.01})",
        R"({"top_k":-1})", R"({"min_p":2})", R"({"repetition_penalty":0})", R"({"do_sample":1})",
        R"({"eos_token_id":[]})", R"({"eos_token_id":-1})", R"({"eos_token_id":["a"]})", "[]", "",
        R"({"top_k":1e99})"}) {
    EXPECT_FALSE(parse_generation_config(json, "g")) << json;
  }
}

// A default that a request may not have would make every request fail that leaves it alone.
TEST(GenerationConfig, DefaultsAreInTheRangeOfARequest) {
  for (const char* key : {"presence_penalty", "frequency_penalty"}) {
    const std::string start = std::string("{\"") + key + "\":";
    const auto good = parse_generation_config(start + "2}", "g");
    ASSERT_TRUE(good) << good.error().message();
    EXPECT_TRUE(good->sampling.validate(1));
    for (const char* value : {"2.01}", "-2.01}", "1e300}"}) {
      const auto bad = parse_generation_config(start + value, "g");
      ASSERT_FALSE(bad) << key << value;
      EXPECT_EQ(bad.error().code, Errc::kCorruptFile);
      EXPECT_THAT(bad.error().where, HasSubstr(key));
    }
  }
  EXPECT_FALSE(parse_generation_config(R"({"do_sample":false,"temperature":101})", "g"));
}

TEST(GenerationConfig, IgnoredLengthsAreLogged) {
  std::string log;
  set_log_sink([&log](LogLevel level, std::string_view text) {
    if (level == LogLevel::kWarning) log += std::string(text) + "\n";
  });
  EXPECT_TRUE(parse_generation_config(R"({"top_k":1,"max_length":null})", "g"));
  EXPECT_EQ(log, "");
  EXPECT_TRUE(parse_generation_config(R"({"max_new_tokens":32,"max_length":20})", "g"));
  set_log_sink({});
  EXPECT_THAT(log, HasSubstr("g: max_new_tokens is ignored"));
  EXPECT_THAT(log, HasSubstr("g: max_length is ignored"));
}

TEST(GenerationConfig, FilesOfTheRepository) {
  const ModelConfig nano = load_model_config("models/nano").value();
  const auto greedy = load_generation_config("models/nano", nano);
  ASSERT_TRUE(greedy) << greedy.error().message();
  EXPECT_TRUE(greedy->sampling.greedy());
  EXPECT_THAT(greedy->eos_token_ids, ElementsAre(7));
  const ModelConfig tiny = load_model_config("models/tiny").value();
  const auto sampled = load_generation_config("models/tiny", tiny);
  ASSERT_TRUE(sampled) << sampled.error().message();
  EXPECT_FLOAT_EQ(sampled->sampling.temperature, 0.7F);
  EXPECT_THAT(sampled->eos_token_ids, ElementsAre(8180, 8178));
}

TEST(GenerationConfig, MissingFileMeansGreedyAndTheHashId) {
  const test::TempDir dir;
  const ModelConfig nano = load_model_config("models/nano").value();
  const auto defaults = load_generation_config(dir.path(), nano);
  ASSERT_TRUE(defaults);
  EXPECT_TRUE(defaults->sampling.greedy());
  EXPECT_THAT(defaults->eos_token_ids, ElementsAre(7));
}

TEST(GenerationConfig, RefusesAFileOfAnotherModel) {
  const test::TempDir dir;
  dir.write("generation_config.json", R"({"eos_token_id":248046})");
  const ModelConfig nano = load_model_config("models/nano").value();
  const auto defaults = load_generation_config(dir.path(), nano);
  ASSERT_FALSE(defaults);
  EXPECT_THAT(defaults.error().message(), HasSubstr("expected below 512, found 248046"));
  dir.write("generation_config.json", "{");
  EXPECT_FALSE(load_generation_config(dir.path(), nano));
}

}  // namespace
}  // namespace tessera
