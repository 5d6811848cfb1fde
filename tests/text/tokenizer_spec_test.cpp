// SPDX-License-Identifier: Apache-2.0
// tokenizer.json as untrusted input: what is not implemented is refused by name, what is broken is
// an error, and neither crashes.
#include <gmock/gmock.h>
#include <functional>
#include "text/tokenizer_regex.h"
#include "tokenizer_fixture.h"

namespace tessera::test {
namespace {

using testing::HasSubstr;

struct Refusal {
  std::string name;
  std::function<void(TokenizerParts&)> edit;
  Errc code;
  std::string named;  // what the message must contain
};

std::string split_with(const std::string& pattern) {
  return R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":")" + pattern +
         R"("},"behavior":"Isolated","invert":false},)"
         R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})";
}

std::vector<Refusal> refusals() {
  constexpr Errc kNo = Errc::kUnsupported;
  constexpr Errc kBad = Errc::kCorruptFile;
  using P = TokenizerParts;
  return {
      {"version", [](P& p) { p.version = R"("2.0")"; }, kNo, "2.0"},
      {"unknown key", [](P& p) { p.top = R"("speed":1,)"; }, kNo, "speed"},
      {"truncation", [](P& p) { p.top = R"("truncation":{"max_length":5},)"; }, kNo, "truncation"},
      {"padding", [](P& p) { p.top = R"("padding":{},)"; }, kNo, "padding"},
      {"NFKC", [](P& p) { p.normalizer = R"({"type":"NFKC"})"; }, kNo, "NFKC"},
      {"normalizer", [](P& p) { p.normalizer = "3"; }, kBad, "normalizer"},
      {"Metaspace", [](P& p) { p.pre_tokenizer = R"({"type":"Metaspace"})"; }, kNo, "Metaspace"},
      {"no ByteLevel", [](P& p) { p.pre_tokenizer = R"({"type":"Sequence","pretokenizers":[]})"; },
       kNo, "ByteLevel"},
      {"pre null", [](P& p) { p.pre_tokenizer = "null"; }, kBad, "pre_tokenizer"},
      {"behavior",
       [](P& p) {
         p.pre_tokenizer =
             R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Removed","invert":false})";
       },
       kNo, "Removed"},
      {"template", [](P& p) { p.post_processor = R"({"type":"TemplateProcessing"})"; }, kNo,
       "TemplateProcessing"},
      {"decoder", [](P& p) { p.decoder = R"({"type":"WordPiece"})"; }, kNo, "WordPiece"},
      {"Unigram", [](P& p) { p.model_type = R"("Unigram")"; }, kNo, "Unigram"},
      {"dropout", [](P& p) { p.model_options = R"("dropout":0.1,)"; }, kNo, "dropout"},
      {"unk", [](P& p) { p.model_options = R"("unk_token":"?",)"; }, kNo, "unk_token"},
      {"suffix", [](P& p) { p.model_options = R"("end_of_word_suffix":"</w>",)"; }, kNo,
       "end_of_word_suffix"},
      {"byte_fallback", [](P& p) { p.model_options = R"("byte_fallback":true,)"; }, kNo,
       "byte_fallback"},
      {"single_word", [](P& p) { p.added = "[" + added_token(300, "x", "single_word") + "]"; }, kNo,
       "single_word"},
      {"same id", [](P& p) { p.extra_vocabulary = R"("ab":5,"bc":257,"abc":258)"; }, kBad, "id 5"},
      {"huge id", [](P& p) { p.extra_vocabulary = R"("ab":99999999,"bc":1,"abc":2)"; }, kBad,
       "99999999"},
      {"negative id", [](P& p) { p.extra_vocabulary = R"("ab":-1,"bc":257,"abc":258)"; }, kBad,
       "-1"},
      {"merge of nothing", [](P& p) { p.merges = R"(["a zz"])"; }, kBad, "a zz"},
      {"merge without join", [](P& p) { p.merges = R"([["a","c"]])"; }, kBad, "a"},
      {"merge of three", [](P& p) { p.merges = R"(["a b c"])"; }, kBad, "a b c"},
      {"merge type", [](P& p) { p.merges = "[7]"; }, kBad, "7"},
      {"added id taken", [](P& p) { p.added = "[" + added_token(5, "<x>") + "]"; }, kBad, "<x>"},
      {"added text taken", [](P& p) { p.added = "[" + added_token(300, "ab") + "]"; }, kBad, "ab"},
      {"added twice",
       [](P& p) { p.added = "[" + added_token(300, "<x>") + "," + added_token(301, "<x>") + "]"; },
       kBad, "<x>"},
      {"added empty", [](P& p) { p.added = "[" + added_token(300, "") + "]"; }, kBad, "content"},
      {"added flags", [](P& p) { p.added = R"([{"id":300,"content":"<x>"}])"; }, kBad,
       "single_word"},
      {"empty match", [](P& p) { p.pre_tokenizer = split_with("a*"); }, kNo, "empty text"},
      {"word class", [](P& p) { p.pre_tokenizer = split_with(R"(\\w+)"); }, kNo, "escape"},
      {"bad regex", [](P& p) { p.pre_tokenizer = split_with("[b-a]"); }, kBad, "compile"},
  };
}

TEST(TokenizerSpec, RefusesByName) {
  ASSERT_TRUE(Tokenizer::parse(tokenizer_json({}), "ok"));
  for (const Refusal& refusal : refusals()) {
    TokenizerParts parts;
    refusal.edit(parts);
    const auto tokenizer = Tokenizer::parse(tokenizer_json(parts), "file");
    ASSERT_FALSE(tokenizer) << refusal.name;
    EXPECT_EQ(tokenizer.error().code, refusal.code) << refusal.name;
    EXPECT_THAT(tokenizer.error().message(), HasSubstr(refusal.named)) << refusal.name;
  }
}

TEST(TokenizerSpec, NeedsATokenForEveryByte) {
  std::string json = tokenizer_json({});
  const size_t at = json.find("\"!\":33,");
  ASSERT_NE(at, std::string::npos);
  json.erase(at, std::string("\"!\":33,").size());
  const auto tokenizer = Tokenizer::parse(json, "file");
  ASSERT_FALSE(tokenizer);
  EXPECT_THAT(tokenizer.error().message(), HasSubstr("byte 33"));
}

TEST(TokenizerSpec, EveryTruncationIsAnError) {
  const std::string json = tokenizer_json({});
  for (size_t size = 0; size < json.size(); size += 7)
    EXPECT_FALSE(Tokenizer::parse(json.substr(0, size), "cut")) << size;
}

TEST(TokenizerSpec, MissingFileIsNotFound) {
  const auto tokenizer = Tokenizer::load("/nonexistent");
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code, Errc::kNotFound);
}

TEST(TokenizerScreen, AcceptsThePatternsOfKnownReleases) {
  for (
      const char* pattern :
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       R"(\p{N}{1,3}(?=x)|(?<!a)b++|(?>c)*?d)", R"([\-\]\[a-z.])", "\xE4\xB8\x80"})
    EXPECT_TRUE(text::screen_pattern(pattern, "p")) << pattern;
}

TEST(TokenizerRegex, StepLimitGrowsWithTheText) {
  const auto regex = text::SplitRegex::compile(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", "p");
  ASSERT_TRUE(regex) << regex.error().message();
  constexpr size_t kBlanks = size_t{1} << 24;
  const std::string text = std::string(kBlanks, ' ') + "x";
  std::vector<std::string_view> pieces;
  regex->split(text, pieces);
  ASSERT_EQ(pieces.size(), 3U);
  EXPECT_EQ(pieces[0].size(), kBlanks - 1);  // the last blank belongs to the next word
}

TEST(TokenizerRegex, RunawayPatternKeepsTheTextWhole) {
  const auto regex = text::SplitRegex::compile("(?:a|a)*b|c", "p");
  ASSERT_TRUE(regex) << regex.error().message();
  const std::string text = "c" + std::string(60, 'a');  // 2^60 ways to fail
  std::vector<std::string_view> pieces;
  regex->split(text, pieces);
  EXPECT_EQ(pieces, (std::vector<std::string_view>{"c", std::string_view(text).substr(1)}));
}

TEST(TokenizerScreen, RefusesWhatTheDialectsReadDifferently) {
  for (const char* pattern : {"",
                              "(a+)+",
                              "(a+b)*",
                              "(?:a*){2}",
                              "^a",
                              "a$",
                              R"(\w)",
                              R"(\h)",
                              R"(\b)",
                              R"(\x41)",
                              R"(\1)",
                              R"(\p{Han})",
                              R"(\p{^L})",
                              R"(\pL)",
                              "[[:alpha:]]",
                              "[a&&b]",
                              "[]a]",
                              "a{,2}",
                              "a{1,2}+",
                              "a{2}?",
                              "a{",
                              "(?<n>a)",
                              "(?i)a",
                              "(?#x)a",
                              "(*F)",
                              "(?R)",
                              "(?i:ss)",
                              "(?i:\xC3\xA9)",
                              "(?i:\\p{L})",
                              "(?i:[ab])",
                              "a**",
                              "*a",
                              "(a",
                              "a)",
                              "[a",
                              R"(\)",
                              "[a-\\s]",
                              "\xFF",
                              "[\xE3\x80\x80-\xF0\x9F\xBF\xBF]",
                              "\xE1\xA0\x8E"})
    EXPECT_FALSE(text::screen_pattern(pattern, "p")) << pattern;
}

}  // namespace
}  // namespace tessera::test
