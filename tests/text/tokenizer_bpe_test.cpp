// SPDX-License-Identifier: Apache-2.0
// Merges against the definition (rescan everything, merge the best pair), on both sides of the
// length where the algorithm changes.
#include "text/tokenizer_bpe.h"
#include <rapidcheck.h>
#include <algorithm>
#include "tokenizer_fixture.h"

namespace tessera::test {
namespace {

constexpr const char* kMerges =
    R"(["a a","aa a","b a","a b","ab ab","aa aa","aaaa aaaa","c ab","abab c"])";
constexpr const char* kVocabulary =
    R"("aa":256,"aaa":257,"ba":258,"ab":259,"abab":260,"aaaa":261,"aaaaaaaa":262,"cab":263,"ababc":264)";

text::TokenizerSpec merge_spec() {
  auto spec = text::parse_tokenizer_spec(
      tokenizer_json({.merges = kMerges, .extra_vocabulary = kVocabulary}), "test");
  if (!spec) throw std::runtime_error(spec.error().message());
  return *std::move(spec);
}

/// The definition: while any neighbours merge, merge the leftmost pair of the lowest rank.
std::vector<int32_t> merge_by_definition(const text::TokenizerSpec& spec, const std::string& word) {
  std::vector<int32_t> ids;
  for (const char byte : word) ids.push_back(static_cast<unsigned char>(byte));
  for (size_t rank = 0; rank < spec.merges.size();) {
    const text::MergeRule& rule = spec.merges[rank];
    const int32_t pair[] = {rule.left, rule.right};
    const auto found = std::search(ids.begin(), ids.end(), std::begin(pair), std::end(pair));
    if (found == ids.end()) {
      ++rank;
      continue;
    }
    *found = rule.merged;
    ids.erase(found + 1);
    rank = 0;
  }
  return ids;
}

TEST(TokenizerBpe, EqualsTheDefinition) {
  const text::TokenizerSpec spec = merge_spec();
  const text::BpeModel model(spec);
  const bool holds = rc::check("merges", [&] {
    const auto length = *rc::gen::inRange<size_t>(0, 140);
    const auto word =
        *rc::gen::container<std::string>(length, rc::gen::elementOf(std::string("aaabc")));
    std::vector<int32_t> ids;
    model.encode_word(word, ids);
    RC_ASSERT(ids == merge_by_definition(spec, word));
  });
  EXPECT_TRUE(holds);
}

TEST(TokenizerBpe, OneLongRunIsNotQuadratic) {
  // 2^20 letters merge into blocks of eight; a quadratic algorithm would need 10^12 steps.
  constexpr size_t kLength = size_t{1} << 20;
  const Tokenizer tokenizer =
      make_tokenizer({.merges = R"(["a a","aa aa","aaaa aaaa"])",
                      .extra_vocabulary = R"("aa":256,"aaaa":257,"aaaaaaaa":258)"});
  const std::vector<int32_t> ids = tokenizer.encode(std::string(kLength, 'a'));
  EXPECT_EQ(ids, std::vector<int32_t>(kLength / 8, 258));
}

TEST(TokenizerBpe, LongRunsOfEveryClassKeepAllBytes) {
  constexpr size_t kLength = 300'000;
  const Tokenizer tokenizer = make_tokenizer({.normalizer = R"({"type":"NFC"})"});
  for (const std::string unit :
       {" ", "\n", " \n", "=", "7", "'s", "\xE4\xB8\x96", "\xCC\x81\xCC\xA3"}) {
    std::string text;
    while (text.size() < kLength) text += unit;
    EXPECT_EQ(tokenizer.encode(text).size(), text.size()) << unit;
  }
}

TEST(TokenizerBpe, LaterRankOfARepeatedPairCounts) {
  const Tokenizer tokenizer = make_tokenizer({.merges = R"(["a b","b c","ab c","a b"])"});
  // "a b" now ranks after "b c", as a map that is filled in order would have it.
  EXPECT_EQ(tokenizer.encode("abc"), (std::vector<int32_t>{'a', 257}));
}

TEST(TokenizerBpe, IgnoreMergesKeepsWholeWords) {
  const Tokenizer merging = make_tokenizer({.merges = R"(["a b"])"});
  EXPECT_EQ(merging.encode("abc"), (std::vector<int32_t>{256, 'c'}));
  const Tokenizer whole =
      make_tokenizer({.model_options = R"("ignore_merges":true,)", .merges = R"(["a b"])"});
  EXPECT_EQ(whole.encode("abc"), (std::vector<int32_t>{258}));
}

}  // namespace
}  // namespace tessera::test
