// SPDX-License-Identifier: Apache-2.0
// A small byte-level tokenizer.json for tests, with one part replaced at a time.
#pragma once

#include <gtest/gtest.h>
#include <tessera/tokenizer.h>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>
#include "text/tokenizer_spec.h"

namespace tessera::test {

inline constexpr int32_t kFirstMerged = 256;

/// The texts that differ between tests; the rest is what every release of the family declares.
struct TokenizerParts {
  std::string version = R"("1.0")";
  std::string top{};  // further keys, each followed by a comma
  std::string added = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  std::string post_processor = "null";
  std::string decoder = R"({"type":"ByteLevel"})";
  std::string model_type = R"("BPE")";
  std::string model_options{};  // further keys, each followed by a comma
  std::string merges = R"(["a b", "b c", "ab c"])";
  std::string extra_vocabulary = R"("ab":256,"bc":257,"abc":258)";
};

inline std::string json_escaped(const std::string& text) {
  std::string escaped;
  for (const char character : text) {
    if (character == '"' || character == '\\') escaped.push_back('\\');
    escaped.push_back(character);
  }
  return escaped;
}

inline std::string tokenizer_json(const TokenizerParts& parts) {
  std::string vocabulary;
  for (int byte = 0; byte < kFirstMerged; ++byte)
    vocabulary += "\"" + json_escaped(text::spelling_of_byte(static_cast<unsigned char>(byte))) +
                  "\":" + std::to_string(byte) + ",";
  return "{\"version\":" + parts.version + "," + parts.top + "\"added_tokens\":" + parts.added +
         ",\"normalizer\":" + parts.normalizer + ",\"pre_tokenizer\":" + parts.pre_tokenizer +
         ",\"post_processor\":" + parts.post_processor + ",\"decoder\":" + parts.decoder +
         ",\"model\":{\"type\":" + parts.model_type + "," + parts.model_options + "\"vocab\":{" +
         vocabulary + parts.extra_vocabulary + "},\"merges\":" + parts.merges + "}}";
}

inline Tokenizer make_tokenizer(const TokenizerParts& parts = {}) {
  auto tokenizer = Tokenizer::parse(tokenizer_json(parts), "test");
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message());
  return *std::move(tokenizer);
}

inline std::string added_token(int32_t id, const std::string& content,
                               const std::string& flag = "special", bool is_special = true) {
  const auto value = [&](const std::string& name) {
    const bool is_set = name == flag || (name == "special" && is_special);
    return "\"" + name + "\":" + (is_set ? "true" : "false");
  };
  return "{\"id\":" + std::to_string(id) + ",\"content\":\"" + content + "\"," +
         value("single_word") + "," + value("lstrip") + "," + value("rstrip") + "," +
         value("normalized") + "," + value("special") + "}";
}

inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace tessera::test
