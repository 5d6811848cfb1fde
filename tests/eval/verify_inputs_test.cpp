// SPDX-License-Identifier: Apache-2.0
// Damaged golden sets and reference files of whole models: refused by name, never run or passed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tessera/verify.h>

#include <functional>

#include "tests/io/safetensors_writer.h"
#include "tests/io/temp_dir.h"

namespace tessera::test {
namespace {

using testing::HasSubstr;

constexpr int kNanoVocab = 512;
constexpr int kTinyVocab = 8192;

CheckpointImage golden_image() {
  const std::string path = "models/nano/golden.safetensors";
  const auto file = MappedFile::open(path).value();
  return checkpoint_image(parse_safetensors(file->bytes(), path).value());
}

template <class T>
void set_element(TensorImage& tensor, size_t index, T value) {
  ASSERT_LE((index + 1) * sizeof(T), tensor.bytes.size());
  std::memcpy(tensor.bytes.data() + index * sizeof(T), &value, sizeof(T));
}

Error golden_refusal(const std::function<void(CheckpointImage&)>& damage, int max_context = 0) {
  const TempDir dir;
  CheckpointImage image = golden_image();
  damage(image);
  dir.write("golden.safetensors", safetensors_bytes(image));
  EngineOptions options;
  options.model_dir = "models/nano";
  options.max_context = max_context;
  const auto report = verify_golden(options, dir.file("golden.safetensors"));
  EXPECT_FALSE(report);
  return report ? Error{.what = "read"} : report.error();
}

TEST(VerifyGoldenInputs, IdsOutsideTheVocabularyAreNamed) {
  for (const char* name : {"text.input_ids", "greedy.prompt", "greedy.output"})
    for (const int32_t id : {-1, kNanoVocab, INT32_MAX}) {
      const Error error =
          golden_refusal([&](CheckpointImage& image) { set_element(image.at(name), 1, id); });
      EXPECT_EQ(error.code, Errc::kMismatch);
      EXPECT_THAT(error.where, HasSubstr(std::string(name) + "[1]"));
      EXPECT_EQ(error.expected, "0 to 511");
      EXPECT_EQ(error.found, std::to_string(id));
    }
}

TEST(VerifyGoldenInputs, EmptyAndUnequalTensorsAreRefused) {
  for (const char* name : {"greedy.prompt", "greedy.output"}) {
    const Error error = golden_refusal(
        [&](CheckpointImage& image) { image.at(name) = tensor_image<int32_t>("I32", {0}, {}); });
    EXPECT_EQ(error.code, Errc::kCorruptFile);
    EXPECT_THAT(error.where, HasSubstr(name));
  }
  const Error no_text = golden_refusal([](CheckpointImage& image) {
    image.at("text.input_ids") = tensor_image<int32_t>("I32", {0}, {});
    image.at("text.logits") = tensor_image<float>("F32", {0, kNanoVocab}, {});
  });
  EXPECT_EQ(no_text.code, Errc::kCorruptFile);
  EXPECT_THAT(no_text.where, HasSubstr("text.input_ids"));
  const Error margins = golden_refusal([](CheckpointImage& image) {
    image.at("greedy.margin") = tensor_image<float>("F32", {2}, {1, 1});
  });
  EXPECT_EQ(margins.code, Errc::kCorruptFile);
  EXPECT_THAT(margins.where, HasSubstr("greedy.margin"));
  EXPECT_EQ(margins.found, "2");
}

TEST(VerifyGoldenInputs, AMarginThatExcusesAnythingIsRefused) {
  for (const float margin : {-1.0F, std::numeric_limits<float>::quiet_NaN()}) {
    const Error error = golden_refusal(
        [&](CheckpointImage& image) { set_element(image.at("greedy.margin"), 0, margin); });
    EXPECT_EQ(error.code, Errc::kCorruptFile);
    EXPECT_THAT(error.where, HasSubstr("greedy.margin[0]"));
  }
}

TEST(VerifyGoldenInputs, ATextBeyondTheContextIsRefused) {
  const Error error = golden_refusal([](CheckpointImage&) {}, 4);
  EXPECT_EQ(error.code, Errc::kMismatch);
  EXPECT_THAT(error.where, HasSubstr("text.input_ids"));
  EXPECT_EQ(error.expected, "at most 4 tokens");
}

constexpr int kContext = 64;

Result<VerifyReport> verify_json(const std::string& json,
                                 const std::string& model_dir = "models/tiny") {
  const TempDir dir;
  dir.write("reference.json", json);
  EngineOptions options;
  options.model_dir = model_dir;
  options.max_context = kContext;
  return verify_reference(options, dir.file("reference.json"));
}

std::string repeated_ids(int count) {
  std::string ids = "[1";
  for (int at = 1; at < count; ++at) ids += ",1";
  return ids + "]";
}

std::string greedy(const std::string& prompt, const std::string& output,
                   const std::string& more = "") {
  return R"({"greedy":{"a":{"prompt_ids":)" + prompt + R"(,"output_ids":)" + output + more + "}}}";
}

Error json_refusal(const std::string& json, const std::string& model_dir = "models/tiny") {
  const auto report = verify_json(json, model_dir);
  EXPECT_FALSE(report) << json;
  return report ? Error{.what = "read"} : report.error();
}

TEST(VerifyReferenceInputs, IdsOutsideTheVocabularyAreNamed) {
  const std::string beyond = "[1," + std::to_string(kTinyVocab) + "]";
  const Error prompt = json_refusal(greedy(beyond, "[1]"));
  EXPECT_EQ(prompt.code, Errc::kMismatch);
  EXPECT_THAT(prompt.message(),
              HasSubstr("greedy.a.prompt_ids[1]: expected 0 to 8191, found 8192"));
  const Error output = json_refusal(greedy("[1]", beyond));
  EXPECT_EQ(output.code, Errc::kMismatch);
  EXPECT_THAT(output.message(),
              HasSubstr("greedy.a.output_ids[1]: expected 0 to 8191, found 8192"));
}

TEST(VerifyReferenceInputs, InputsBeyondTheContextAreRefused) {
  for (const auto& [prompt, output] : {std::pair(kContext + 1, 1), std::pair(kContext, 1)}) {
    const Error error = json_refusal(greedy(repeated_ids(prompt), repeated_ids(output)));
    EXPECT_EQ(error.code, Errc::kMismatch);
    EXPECT_THAT(error.where, HasSubstr("greedy.a.prompt_ids"));
    EXPECT_EQ(error.expected, "at most 64 tokens");
  }
  std::string text;
  for (int at = 0; at <= kContext; ++at) text += " the";
  const Error error =
      json_refusal(R"({"perplexity":{"t":{"tokens":65,"nll":1,"text":")" + text + R"("}}})");
  EXPECT_EQ(error.code, Errc::kMismatch);
  EXPECT_THAT(error.where, HasSubstr("perplexity.t"));
}

// No model counts through its vocabulary: without margins nothing excuses that.
TEST(VerifyReferenceInputs, IdsWithoutMarginsAreCompared) {
  const std::string output = "[0,1,2,3,4,5,6,7]";
  const auto report = verify_json(greedy("[1,1]", output));
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_FALSE(report->passed());
  // The same mismatches where the reference was undecided.
  const auto tied = verify_json(greedy("[1,1]", output, R"(,"margin":[0,0,0,0,0,0,0,0])"));
  ASSERT_TRUE(tied) << tied.error().message();
  EXPECT_TRUE(tied->passed());
}

TEST(VerifyReferenceInputs, AFileThatComparesNothingIsRefused) {
  for (const std::string& json :
       {greedy("[1]", "[]"), greedy("[1]", "[]", R"(,"prompt":"x","want":"y")"),
        std::string(R"({"needle":[{"prompt":"q","greedy_ids":[3],"want":"w","correct":false}]})"),
        std::string(R"({"needle":[{"prompt":"q","greedy_ids":[3]}]})")}) {
    const Error error = json_refusal(json);
    EXPECT_EQ(error.code, Errc::kCorruptFile);
    EXPECT_THAT(error.what, HasSubstr("nothing to compare"));
  }
  EXPECT_FALSE(VerifyReport{}.passed());
}

TEST(VerifyReferenceInputs, ATokenizerLargerThanTheModelIsRefused) {
  const TempDir dir;
  const auto link = [&](const std::string& from, const char* name) {
    std::filesystem::create_symlink(std::filesystem::absolute(from + "/" + name), dir.file(name));
  };
  link("models/nano", "config.json");
  link("models/nano", "model.safetensors");
  link("models/tiny", "tokenizer.json");
  link("models/tiny", "tokenizer_config.json");
  const Error error = json_refusal(greedy("[1]", "[1]"), dir.path());
  EXPECT_EQ(error.code, Errc::kMismatch);
  EXPECT_THAT(error.message(), HasSubstr("expected at most 512 ids"));
}

}  // namespace
}  // namespace tessera::test
