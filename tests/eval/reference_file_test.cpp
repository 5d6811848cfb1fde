// SPDX-License-Identifier: Apache-2.0
// reference.json: what is read, and every way in which a member can be wrong.
#include "eval/reference_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string greedy(const std::string& members) { return R"({"greedy":{"a":{)" + members + "}}}"; }
std::string needle(const std::string& members) { return R"({"needle":[{)" + members + "}]}"; }
std::string text(const std::string& members) { return R"({"perplexity":{"t":{)" + members + "}}}"; }

/// Message of the refusal, which must blame the file.
std::string refusal(const std::string& json) {
  const auto file = parse_reference_file(json, "r.json");
  if (file) return "read";
  EXPECT_EQ(file.error().code, Errc::kCorruptFile) << json;
  return file.error().message();
}

TEST(ReferenceFile, ReadsACaseOfEachKind) {
  const auto file = parse_reference_file(
      R"({"source":"s","greedy":{"a":{"prompt":"p","prompt_ids":[1,2],"output_ids":[3,4],
          "margin":[0.5,1],"text":"x","want":"x"}},
          "needle":[{"prompt":"q","greedy_ids":[5],"want":"w","correct":true}],
          "perplexity":{"t":{"text":"abc","tokens":2,"nll":1.5}}})",
      "r.json");
  ASSERT_TRUE(file) << file.error().message();
  ASSERT_EQ(file->cases.size(), 2U);
  const ReferenceCase& first = file->cases[0];
  EXPECT_EQ(first.name, "greedy.a");
  EXPECT_THAT(first.prompt, ElementsAre(1, 2));
  EXPECT_THAT(first.output, ElementsAre(3, 4));
  EXPECT_THAT(first.margin, ElementsAre(0.5, 1.0));
  EXPECT_TRUE(first.compare_ids);
  EXPECT_TRUE(first.reference_right);
  const ReferenceCase& second = file->cases[1];
  EXPECT_EQ(second.name, "needle[0]");
  EXPECT_TRUE(second.retrieval);
  EXPECT_TRUE(second.reference_right);
  ASSERT_EQ(file->texts.size(), 1U);
  EXPECT_EQ(file->texts[0].tokens, 2);
}

TEST(ReferenceFile, ComparesIdsUnlessANeedleHasNoMargins) {
  const auto compares = [](const std::string& json) {
    return parse_reference_file(json, "r.json").value().cases.at(0).compare_ids;
  };
  EXPECT_TRUE(compares(greedy(R"("prompt_ids":[1],"output_ids":[3])")));
  EXPECT_FALSE(compares(greedy(R"("prompt_ids":[1],"output_ids":[])")));
  EXPECT_FALSE(compares(needle(R"("prompt":"q","greedy_ids":[3])")));
  EXPECT_TRUE(compares(needle(R"("prompt":"q","greedy_ids":[3],"margin":[1])")));
}

TEST(ReferenceFile, RefusesIdsThatAreNoInt32) {
  // 4294967297 would be 1 when cut to 32 bits.
  for (const char* id :
       {"4294967297", "2147483648", "-1", "1.5", "\"1\"", "null", "18446744073709551615"}) {
    const std::string list = std::string("[0,") + id + "]";
    EXPECT_THAT(
        refusal(greedy(R"("output_ids":[1],"prompt_ids":)" + list)),
        HasSubstr("r.json: greedy.a.prompt_ids[1]: expected a token id, found " + std::string(id)));
    EXPECT_THAT(refusal(greedy(R"("prompt_ids":[1],"output_ids":)" + list)),
                HasSubstr("greedy.a.output_ids[1]"));
    EXPECT_THAT(refusal(needle(R"("prompt":"q","greedy_ids":)" + list)),
                HasSubstr("needle[0].greedy_ids[1]"));
  }
}

TEST(ReferenceFile, RefusesMarginsThatDoNotFitTheOutput) {
  const std::string start = R"("prompt_ids":[1],"output_ids":[3,4],"margin":)";
  for (const char* margin : {"[1]", "[1,1,1]", "[]"})
    EXPECT_THAT(refusal(greedy(start + margin)), HasSubstr("one number per output token, 2"));
  for (const char* margin : {"1", "\"1\"", "{}", "null", R"([1,"1"])", "[1,null]", "[1,-1]"})
    EXPECT_THAT(refusal(greedy(start + margin)), HasSubstr("greedy.a.margin")) << margin;
}

TEST(ReferenceFile, FirstDraftsAreOneFlagForEachTokenButTheLast) {
  const auto with = [](const std::string& flags) {
    return greedy(R"("prompt_ids":[1],"output_ids":[3,4,5],"mtp_first_draft_accepted":)" + flags);
  };
  const auto file = parse_reference_file(with("[1,0]"), "r.json");
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_THAT(file->cases.at(0).first_drafts, ElementsAre(true, false));
  for (const char* flags : {"[1]", "[1,0,1]", "[1,2]", "[1,true]", "1"})
    EXPECT_THAT(refusal(with(flags)), HasSubstr("greedy.a.mtp_first_draft_accepted")) << flags;
}

TEST(ReferenceFile, RefusesEmptyPrompts) {
  EXPECT_THAT(refusal(greedy(R"("prompt_ids":[],"output_ids":[3])")), HasSubstr("a.prompt_ids"));
  EXPECT_THAT(refusal(greedy(R"("output_ids":[3])")), HasSubstr("a.prompt"));
  EXPECT_THAT(refusal(needle(R"("prompt":"","greedy_ids":[3])")), HasSubstr("needle[0].prompt"));
}

TEST(ReferenceFile, RefusesTextsThatCannotBeScored) {
  for (const char* tokens : {"1", "0", "-5", "2147483648", "2.0", "\"2\""})
    EXPECT_THAT(refusal(text(R"("text":"abc","nll":1,"tokens":)" + std::string(tokens))),
                HasSubstr("perplexity.t.tokens: expected an integer from 2 up"));
  for (const char* nll : {"\"1\"", "null"})
    EXPECT_THAT(refusal(text(R"("text":"abc","tokens":2,"nll":)" + std::string(nll))),
                HasSubstr("perplexity.t.nll"));
  EXPECT_THAT(refusal(text(R"("tokens":2,"nll":1)")), HasSubstr("perplexity.t.text"));
}

TEST(ReferenceFile, RefusesMembersOfAnotherType) {
  const std::string start = R"("prompt_ids":[1],"output_ids":[3],)";
  for (const char* member : {R"("want":1)", R"("prompt":[1])", R"("correct":"yes")", R"("text":2)"})
    EXPECT_NE(refusal(greedy(start + member)), "read") << member;
  for (const char* json : {"{}", "[]", "", R"({"greedy":[]})", R"({"needle":{}})",
                           R"({"perplexity":[]})", R"({"greedy":{"a":1}})"})
    EXPECT_NE(refusal(json), "read") << json;
}

TEST(ReferenceFile, NamesTheNeedleByItsOwnIndex) {
  EXPECT_THAT(refusal(R"({"greedy":{"a":{"prompt_ids":[1],"output_ids":[3]}},"needle":[1]})"),
              HasSubstr("needle[0]"));
}

}  // namespace
}  // namespace tessera
