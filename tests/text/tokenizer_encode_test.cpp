// SPDX-License-Identifier: Apache-2.0
// Encoding beyond the vectors: broken UTF-8, added tokens, forged turns, look-up by text.
#include <rapidcheck.h>
#include "text/unicode.h"
#include "tokenizer_fixture.h"

namespace tessera::test {
namespace {

using Ids = std::vector<int32_t>;

std::string repaired(const std::string& raw) {
  std::string out;
  if (text::append_complete_utf8(raw, out) < raw.size()) out += text::kReplacement;
  return out;
}

struct BrokenText {
  std::string raw;
  std::string repaired;
};

TEST(TokenizerUtf8, ReplacesMaximalSubparts) {
  const std::string bad(text::kReplacement);
  const std::vector<BrokenText> cases = {
      {"", ""},
      {"\xC0\xAF", bad + bad},                      // overlong
      {"\xE0\x80\xAF", bad + bad + bad},            // overlong
      {"\xED\xA0\x80", bad + bad + bad},            // surrogate
      {"\xF4\x90\x80\x80", bad + bad + bad + bad},  // above U+10FFFF
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", bad + bad + bad + bad + "A"},
      {"\xF0\x9F\x91", bad},  // cut emoji: one error
      {"a\x80z", "a" + bad + "z"},
      {"\xF8\x88\x80\x80\x80", bad + bad + bad + bad + bad},  // five-byte form
      {"\xE4\xB8\x96", "\xE4\xB8\x96"},
  };
  const Tokenizer tokenizer = make_tokenizer();
  for (const BrokenText& broken : cases) {
    EXPECT_EQ(repaired(broken.raw), broken.repaired);
    EXPECT_EQ(tokenizer.encode(broken.raw), tokenizer.encode(broken.repaired));
    EXPECT_EQ(text::is_valid_utf8(broken.raw), broken.raw == broken.repaired);
  }
}

TEST(TokenizerEncode, RoundTripsAnyBytes) {
  const Tokenizer tokenizer = make_tokenizer();
  EXPECT_TRUE(rc::check("decode(encode(x)) is x with its errors replaced", [&] {
    const auto bytes = *rc::gen::arbitrary<std::vector<uint8_t>>();
    const std::string raw(bytes.begin(), bytes.end());
    RC_ASSERT(tokenizer.decode(tokenizer.encode(raw)) == repaired(raw));
  }));
}

TEST(TokenizerEncode, EmptyTextHasNoIds) {
  EXPECT_TRUE(make_tokenizer().encode("").empty());
  const Tokenizer prefixed = make_tokenizer(
      {.pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false})"});
  EXPECT_TRUE(prefixed.encode("").empty());
  EXPECT_EQ(prefixed.encode("x"), (Ids{' ', 'x'}));
  EXPECT_EQ(prefixed.encode(" x"), (Ids{' ', 'x'}));
}

TEST(TokenizerAdded, LongestOfThoseThatStartFirst) {
  const Tokenizer tokenizer =
      make_tokenizer({.added = "[" + added_token(300, "<a") + "," + added_token(301, "<a>") + "," +
                               added_token(302, "a>b") + "]"});
  EXPECT_EQ(tokenizer.encode("x<a>b"), (Ids{'x', 301, 'b'}));
  EXPECT_EQ(tokenizer.encode("<<a!"), (Ids{'<', 300, '!'}));
  EXPECT_EQ(tokenizer.encode("a>b<a"), (Ids{302, 300}));
}

TEST(TokenizerAdded, UserTextCannotForgeATurn) {
  const Tokenizer tokenizer =
      make_tokenizer({.added = "[" + added_token(300, "<|im_end|>") + "," +
                               added_token(301, "<think>", "", false) + "]"});
  const std::string text = "<|im_end|><think>";
  EXPECT_EQ(tokenizer.encode(text), (Ids{300, 301}));
  const Ids plain = tokenizer.encode(text, false);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 300), 0);
  EXPECT_EQ(plain.back(), 301);  // only special tokens become text
  EXPECT_EQ(tokenizer.decode(plain), text);
}

TEST(TokenizerAdded, AShieldedMessageIsPlainTextInsideATemplate) {
  const Tokenizer tokenizer = Tokenizer::load("models/tiny").value();
  const std::string open = "<|im_start|>user\n", close = "<|im_end|>\n";
  const std::vector<std::string> pieces = {
      "<|im_end|>", "<|im_start|>", "<|im",     "_end|>",       "<think>",
      "\n",         "hello ",       "\xC3\xA9", "\xEF\xB7\x90", "<"};
  EXPECT_TRUE(rc::check("shield", [&] {
    std::string message = "x";
    for (const size_t pick :
         *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, pieces.size())))
      message += pieces[pick];
    const Ids ids = tokenizer.encode_rendered(open + tokenizer.shield(message + "y") + close);
    Ids specials;
    for (const int32_t id : ids)
      if (tokenizer.is_special(id)) specials.push_back(id);
    RC_ASSERT(specials ==
              (Ids{tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>")}));
    // What the model reads is the message itself; only the mark's own code point is replaced.
    std::string want = message + "y";
    for (size_t at; (at = want.find(pieces[8])) != std::string::npos;)
      want.replace(at, pieces[8].size(), text::kReplacement);
    RC_ASSERT(tokenizer.decode(ids) == "user\n" + want + "\n");
  }));
  EXPECT_EQ(tokenizer.shield("no marks"), "no marks");
}

TEST(TokenizerAdded, StripFlagsSwallowWhiteSpace) {
  const Tokenizer left = make_tokenizer({.added = "[" + added_token(300, "<x>", "lstrip") + "]"});
  EXPECT_EQ(left.encode("a \n\xE3\x80\x80<x> b"), (Ids{'a', 300, ' ', 'b'}));
  const Tokenizer right = make_tokenizer({.added = "[" + added_token(300, "<x>", "rstrip") + "]"});
  EXPECT_EQ(right.encode("a <x>\xC2\xA0 \tb"), (Ids{'a', ' ', 300, 'b'}));
}

TEST(TokenizerAdded, NormalizedOnesAreFoundAfterNfc) {
  const std::string composed = "caf\xC3\xA9";
  const std::string decomposed = "cafe\xCC\x81";
  const std::string nfc = R"({"type":"NFC"})";
  const Tokenizer after = make_tokenizer(
      {.added = "[" + added_token(300, composed, "normalized") + "]", .normalizer = nfc});
  EXPECT_EQ(after.encode(decomposed), Ids{300});
  const Tokenizer before = make_tokenizer(
      {.added = "[" + added_token(300, composed, "special") + "]", .normalizer = nfc});
  EXPECT_EQ(before.encode(composed), Ids{300});
  EXPECT_NE(before.encode(decomposed), Ids{300});
}

TEST(TokenizerLookUp, ByIdAndByText) {
  const Tokenizer tokenizer = make_tokenizer({.added = "[" + added_token(300, "<x>") + "]"});
  EXPECT_EQ(tokenizer.vocab_size(), 301);
  EXPECT_EQ(tokenizer.token_id("<x>"), 300);
  EXPECT_EQ(tokenizer.token_id("abc"), 258);
  EXPECT_EQ(tokenizer.token_id(" "), ' ');
  EXPECT_EQ(tokenizer.token_id("none"), -1);
  EXPECT_EQ(tokenizer.token_bytes(258), "abc");
  EXPECT_EQ(tokenizer.token_bytes(0xE9), "\xE9");
  EXPECT_TRUE(tokenizer.is_special(300));
  EXPECT_FALSE(tokenizer.is_special(258));
  for (const int32_t outside : {-1, 270, 301, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer.token_bytes(outside), "");
    EXPECT_FALSE(tokenizer.is_special(outside));
  }
}

TEST(TokenizerUnicode, NfcOfMarksIsIndependentOfTheRunLength) {
  EXPECT_EQ(text::to_nfc("a\xCC\x81\xCC\xA3"), "\xE1\xBA\xA1\xCC\x81");  // dot below comes first
  EXPECT_EQ(text::to_nfc("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"), "\xED\x95\x9C");
  EXPECT_EQ(text::to_nfc("\xE0\xA5\x98"), "\xE0\xA4\x95\xE0\xA4\xBC");  // composition exclusion
  EXPECT_FALSE(text::is_surely_nfc("e\xCC\x81"));
  EXPECT_TRUE(text::is_surely_nfc("plain \xE4\xB8\x96 \xED\x95\x9C"));
  // Alternating classes: quadratic sorting would take minutes.
  constexpr size_t kPairs = 200'000;
  std::string marks = "q";
  for (size_t pair = 0; pair < kPairs; ++pair) marks += "\xCC\x81\xCC\xA3";
  const std::string ordered = text::to_nfc(marks);
  EXPECT_EQ(ordered.size(), marks.size());
  EXPECT_EQ(ordered.substr(0, 5), "q\xCC\xA3\xCC\xA3");
}

}  // namespace
}  // namespace tessera::test
