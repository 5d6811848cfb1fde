// SPDX-License-Identifier: Apache-2.0
// Prompts of the trained models' reference runs, and published vectors for the released tokenizer.
#include <boost/json.hpp>
#include <cstdlib>
#include <filesystem>
#include <span>
#include "tokenizer_fixture.h"

namespace tessera::test {
namespace {

namespace json = boost::json;
using Ids = std::vector<int32_t>;

class SharedGolden : public testing::TestWithParam<const char*> {};

TEST_P(SharedGolden, PromptIdsAndTextAreEqual) {
  const std::string model = std::string("../shared/models/") + GetParam();
  const std::string golden = std::string("../shared/golden/") + GetParam() + ".json";
  if (!std::filesystem::exists(model) || !std::filesystem::exists(golden))
    GTEST_SKIP() << "needs " << model << " and " << golden;
  const auto tokenizer = Tokenizer::load(model);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();
  const json::value file = json::parse(file_text(golden));
  size_t num_prompts = 0;
  const auto check = [&](const json::value& run) {
    const json::value* ids = run.as_object().if_contains("prompt_ids");
    if (ids == nullptr) return;
    ++num_prompts;
    const std::string prompt = run.at("prompt").as_string().c_str();
    EXPECT_EQ(tokenizer->encode(prompt), json::value_to<Ids>(*ids));
    EXPECT_EQ(tokenizer->decode(json::value_to<Ids>(*ids), false), prompt);
    const json::value* output = run.as_object().if_contains("output_ids");
    if (output == nullptr || !run.as_object().contains("text")) return;
    const std::string shown = run.at("text").as_string().c_str();
    EXPECT_EQ(tokenizer->decode(json::value_to<Ids>(*output), false), shown);
  };
  for (const auto& run : file.at("greedy").as_object()) check(run.value());
  for (const json::value& run : file.at("needle").as_array()) check(run);
  EXPECT_GT(num_prompts, 0U);
}

INSTANTIATE_TEST_SUITE_P(Models, SharedGolden,
                         testing::Values("tiny_fp8", "small_fp8", "small_bf16"));

struct ReleasedVector {
  std::string text;
  Ids ids;
};

TEST(ReleasedTokenizer, EqualsPublishedVectors) {
  const char* folder = std::getenv("TESSERA_REAL_TOKENIZER");
  if (folder == nullptr)
    GTEST_SKIP() << "TESSERA_REAL_TOKENIZER does not name a folder with the released tokenizer";
  const auto tokenizer = Tokenizer::load(folder);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();
  const std::vector<ReleasedVector> vectors = {
      {"Firewing", {16207, 22856}},
      {" leading\nline\tend ", {6187, 198, 1021, 6050, 220}},
      {"Hello, 世界 — مرحبا — Привет 👋",
       {9419, 11, 220, 96748, 1892, 164422, 150027, 1892, 239029, 59720, 233}},
      {"literal <|im_start|> marker", {34600, 220, 248045, 10811}},
      {"\n", {198}},
      {"\n\n", {271}},
      {" ", {220}},
      {"system", {8678}},
      {"user", {846}},
      {"assistant", {74455}},
      {"<|im_start|>system\nYou are concise.<|im_end|>\n<|im_start|>user\nSay hello to "
       "Firewing.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
       {248045, 8678, 198,    2523,  513,   61446,  13,   248046, 198,
        248045, 846,  198,    44240, 23066, 310,    6438, 22856,  13,
        248046, 198,  248045, 74455, 198,   248068, 271,  248069, 271}},
  };
  for (const ReleasedVector& vector : vectors) {
    EXPECT_EQ(tokenizer->encode(vector.text), vector.ids) << vector.text;
    EXPECT_EQ(tokenizer->decode(vector.ids, false), vector.text);
  }
  EXPECT_EQ(tokenizer->token_id("<|audio_pad|>"), 248076);
  EXPECT_TRUE(tokenizer->is_special(tokenizer->token_id("<|im_end|>")));
  EXPECT_FALSE(tokenizer->is_special(tokenizer->token_id("<tool_call>")));
}

}  // namespace
}  // namespace tessera::test
