// SPDX-License-Identifier: Apache-2.0
// Ids to text piece by piece: whole characters only, stop strings never shown, any cut the same.
#include <rapidcheck.h>
#include <tessera/text_stream.h>
#include <numeric>
#include "text/stop_matcher.h"
#include "text/unicode.h"
#include "tokenizer_fixture.h"

namespace tessera::test {
namespace {

using Ids = std::vector<int32_t>;

Ids bytes_as_ids(const std::string& text) {
  Ids ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

Tokenizer with_special() {
  return make_tokenizer({.added = "[" + added_token(300, "<|x|>") + "," +
                                  added_token(301, "<think>", "", false) + "]"});
}

TEST(Detokenizer, OneByteAtATimeNeverShowsHalfACharacter) {
  const Tokenizer tokenizer = with_special();
  for (const std::string text :
       {"น้ำใจ", "한국어", "👨‍👩‍👧‍👦🏳️‍🌈", "a\u0301z", "שָׁלוֹם"}) {
    Detokenizer stream(tokenizer);
    std::string shown;
    for (const int32_t id : bytes_as_ids(text)) {
      const std::string piece = stream.push(id);
      EXPECT_TRUE(text::is_valid_utf8(piece));
      EXPECT_EQ(piece.find(text::kReplacement), std::string::npos);
      shown += piece;
    }
    EXPECT_EQ(shown, text);
    EXPECT_EQ(stream.flush(), "");
  }
}

TEST(Detokenizer, InvalidBytesAreReplacedOnce) {
  const Tokenizer tokenizer = with_special();
  const std::string bad(text::kReplacement);
  Detokenizer stream(tokenizer);
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push('A'), bad + "A");
  EXPECT_EQ(stream.push(0x80), bad);
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.flush(), bad);
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push('z'), "z");
}

TEST(Detokenizer, SpecialTokensFlushWhatWaits) {
  const Tokenizer tokenizer = with_special();
  const std::string bad(text::kReplacement);
  Detokenizer showing(tokenizer, false);
  EXPECT_EQ(showing.push(0xE4), "");
  EXPECT_EQ(showing.push(300), bad + "<|x|>");
  Detokenizer skipping(tokenizer, true);
  EXPECT_EQ(skipping.push(0xC3), "");
  EXPECT_EQ(skipping.push(300), "");
  EXPECT_EQ(skipping.push(0xA9), "\u00e9");  // decode() joins them too
  EXPECT_EQ(skipping.push(301), "<think>");
}

TEST(Detokenizer, ConcatenationEqualsDecode) {
  const Tokenizer tokenizer = with_special();
  EXPECT_TRUE(rc::check("stream == decode", [&] {
    const auto ids = *rc::gen::container<Ids>(
        rc::gen::oneOf(rc::gen::inRange(-2, 305), rc::gen::inRange(0x80, 0x100)));
    const bool skip_special = *rc::gen::arbitrary<bool>();
    std::string bytes;
    Detokenizer stream(tokenizer, skip_special);
    std::string streamed;
    for (const int32_t id : ids) {
      if (!skip_special || !tokenizer.is_special(id)) bytes += tokenizer.token_bytes(id);
      streamed += stream.push(id);
      RC_ASSERT(text::is_valid_utf8(streamed));
    }
    streamed += stream.flush();
    std::string whole;
    if (text::append_complete_utf8(bytes, whole) < bytes.size()) whole += text::kReplacement;
    RC_ASSERT(streamed == whole);
    RC_ASSERT(tokenizer.decode(ids, skip_special) == whole);
  }));
}

struct StopResult {
  std::string shown;
  int hit;
  bool operator==(const StopResult&) const = default;
};

/// The definition: the first end of any stop string, and the longest that ends there.
StopResult stop_by_definition(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int hit = -1;
    size_t longest = 0;
    for (size_t index = 0; index < stops.size(); ++index) {
      const std::string& stop = stops[index];
      if (stop.size() <= longest || !text.substr(0, end).ends_with(stop)) continue;
      longest = stop.size();
      hit = static_cast<int>(index);
    }
    if (hit >= 0) return {text.substr(0, end - longest), hit};
  }
  return {text, -1};
}

TEST(StopMatcher, EqualsTheDefinitionForAnyChunks) {
  EXPECT_TRUE(rc::check("chunk-invariant", [] {
    const auto gen_text = rc::gen::container<std::string>(rc::gen::elementOf(std::string("aab")));
    const auto chunks = *rc::gen::container<std::vector<std::string>>(gen_text);
    const auto stops = *rc::gen::container<std::vector<std::string>>(rc::gen::nonEmpty(gen_text));
    auto matcher = text::StopMatcher::create(stops);
    RC_ASSERT(matcher.has_value());
    std::string shown;
    for (const std::string& chunk : chunks) shown += matcher->push(chunk);
    shown += matcher->flush();
    const std::string text = std::accumulate(chunks.begin(), chunks.end(), std::string());
    RC_ASSERT((StopResult{shown, matcher->hit()} == stop_by_definition(text, stops)));
  }));
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldMatch) {
  auto matcher = text::StopMatcher::create({"STOP", "TOPAZ"});
  ASSERT_TRUE(matcher);
  EXPECT_EQ(matcher->push("go STO"), "go ");
  EXPECT_EQ(matcher->push("X"), "STOX");
  EXPECT_EQ(matcher->push("TOPA"), "");
  EXPECT_FALSE(matcher->stopped());
  EXPECT_EQ(matcher->push("Z!"), "");
  EXPECT_TRUE(matcher->stopped());
  EXPECT_EQ(matcher->hit(), 1);
  EXPECT_EQ(matcher->push("more"), "");
  EXPECT_EQ(matcher->flush(), "");
}

TEST(StopMatcher, RefusesEmptyAndHugeStops) {
  EXPECT_FALSE(text::StopMatcher::create({"a", ""}));
  EXPECT_FALSE(text::StopMatcher::create({std::string(70'000, 'a')}));
  EXPECT_TRUE(text::StopMatcher::create({}));
}

TEST(TextStream, StopsInsideATokenAndAcrossTokens) {
  const Tokenizer tokenizer = with_special();
  auto stream = TextStream::create(tokenizer, {"bcX"});
  ASSERT_TRUE(stream) << stream.error().message();
  EXPECT_EQ(stream->push('h').text, "h");
  EXPECT_EQ(stream->push(258).text, "a");  // "abc": "bc" waits
  const TextStream::Delta hit = stream->push('X');
  EXPECT_EQ(hit.text, "");
  EXPECT_TRUE(hit.stopped);
  EXPECT_EQ(stream->stop_index(), 0);
  EXPECT_TRUE(stream->push('y').stopped);
  EXPECT_EQ(stream->flush().text, "");
}

TEST(TextStream, FlushReleasesHeldTextAndBrokenEnd) {
  const Tokenizer tokenizer = with_special();
  auto stream = TextStream::create(tokenizer, {"abZ"});
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->push(256).text, "");
  EXPECT_EQ(stream->push(0xE4).text, "");
  const TextStream::Delta rest = stream->flush();
  EXPECT_EQ(rest.text, "ab" + std::string(text::kReplacement));
  EXPECT_FALSE(rest.stopped);
  EXPECT_EQ(stream->stop_index(), -1);
  EXPECT_FALSE(TextStream::create(tokenizer, {""}));
}

}  // namespace
}  // namespace tessera::test
