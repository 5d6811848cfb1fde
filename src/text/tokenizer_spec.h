// SPDX-License-Identifier: Apache-2.0
// What a tokenizer.json declares, checked: plain data that the encoder is built from.
#pragma once

#include <tessera/error.h>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// A text that becomes one id wherever it appears, before the byte-pair merges see it.
struct AddedToken {
  int32_t id = 0;
  std::string content{};
  bool lstrip = false;      // swallows white space on its left
  bool rstrip = false;      // swallows white space on its right
  bool normalized = false;  // looked for in the normalised text instead of the raw one
  bool special = false;
};

/// Rank is the position in the list.
struct MergeRule {
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};

struct BaseToken {
  std::string bytes{};          // what the id stands for
  bool in_vocabulary = false;   // holes between ids are not
  bool is_byte_string = false;  // spelled in the byte alphabet, so words can become it
};

struct TokenizerSpec {
  std::vector<BaseToken> base{};  // by id
  std::vector<MergeRule> merges{};
  std::vector<AddedToken> added{};
  std::vector<std::string> split_patterns{};  // applied one after the other
  bool use_nfc = false;
  bool add_prefix_space = false;
  bool ignore_merges = false;  // a word that is a token stays whole
};

/// Fails with kCorruptFile, kMismatch or, for anything declared that is not implemented,
/// kUnsupported and its name.
Result<TokenizerSpec> parse_tokenizer_spec(std::string_view json, const std::string& where);

/// The byte alphabet of byte-level BPE: every byte is one printable character. Bytes of `spelled`,
/// or nothing when a character is outside the alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view spelled);
std::string spelling_of_byte(unsigned char byte);

}  // namespace tessera::text
