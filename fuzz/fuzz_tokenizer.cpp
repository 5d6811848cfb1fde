// SPDX-License-Identifier: Apache-2.0
// Any tokenizer.json, then any text through it: no crash, and what a byte-level model promises.
#include <tessera/text_stream.h>
#include <tessera/tokenizer.h>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include "text/tokenizer_spec.h"
#include "text/unicode.h"

namespace {

constexpr size_t kMaxText = 512;  // a hostile pattern may be polynomial in the text

void require(bool holds) {
  if (!holds) std::abort();
}

std::string small_model() {
  std::string vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelled = tessera::text::spelling_of_byte(static_cast<unsigned char>(byte));
    const bool is_escaped = spelled == "\"" || spelled == "\\";
    vocabulary += "\"" + std::string(is_escaped ? "\\" : "") + spelled + "\":";
    vocabulary += std::to_string(byte) + ",";
  }
  return R"({"version":"1.0","added_tokens":[{"id":258,"content":"<|x|>","single_word":false,)"
         R"("lstrip":false,"rstrip":false,"normalized":false,"special":true}],"pre_tokenizer":)"
         R"({"type":"ByteLevel","add_prefix_space":false},"decoder":{"type":"ByteLevel"},)"
         R"("model":{"type":"BPE","vocab":{)" +
         vocabulary + R"("aa":256,"aaa":257},"merges":["a a","aa a"]}})";
}

/// Streaming equals decoding, whatever the ids.
void check_streams(const tessera::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  auto stream = tessera::TextStream::create(tokenizer, {});
  std::string streamed;
  for (const int32_t id : ids) {
    streamed += stream->push(id).text;
    require(tessera::text::is_valid_utf8(streamed));
  }
  require(streamed + stream->flush().text == tokenizer.decode(ids));
}

void check_plain(std::string_view text) {
  static const tessera::Tokenizer tokenizer = *tessera::Tokenizer::parse(small_model(), "built in");
  std::string repaired;
  if (tessera::text::append_complete_utf8(text, repaired) < text.size())
    repaired += tessera::text::kReplacement;
  require(tokenizer.decode(tokenizer.encode(text), false) == repaired);
  const std::string composed = tessera::text::to_nfc(repaired);
  require(tessera::text::is_valid_utf8(composed));
  require(tessera::text::to_nfc(composed) == composed);
  require(!tessera::text::is_surely_nfc(repaired) || composed == repaired);
  require(tessera::text::with_stand_ins(repaired).size() == repaired.size());
  std::vector<int32_t> ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte) + 5);
  check_streams(tokenizer, ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(std::min(cut + 1, input.size())).substr(0, kMaxText);
  check_plain(input.substr(0, kMaxText));
  const auto tokenizer = tessera::Tokenizer::parse(input.substr(0, cut), "fuzz");
  if (!tokenizer) {
    require(!tokenizer.error().message().empty());
    return 0;
  }
  for (const bool parse_special : {true, false})
    check_streams(*tokenizer, tokenizer->encode(text, parse_special));
  return 0;
}
