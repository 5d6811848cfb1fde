// SPDX-License-Identifier: Apache-2.0
// Finds added tokens in text: leftmost first, the longest of those that start there.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "text/string_map.h"
#include "text/tokenizer_spec.h"

namespace tessera::text {

/// A stretch of text: an added token, or (id < 0) what the merges must encode.
struct AddedPiece {
  int32_t id;
  std::string_view text;  // empty for a token
};

class AddedTokenMatcher {
 public:
  /// `text` is what is looked for, already normalised where the token asks for it.
  void add(std::string text, const AddedToken& token);
  /// Cuts `text` (valid UTF-8). With `parse_special` false the special tokens stay text, yet still
  /// hide shorter tokens inside them, as in the reference.
  void split(std::string_view text, bool parse_special, std::vector<AddedPiece>& pieces) const;

 private:
  struct Entry {
    int32_t id;
    bool lstrip;
    bool rstrip;
    bool special;
  };
  struct Match {
    size_t start;
    size_t length;
    const Entry* entry;
  };
  /// Entry null when nothing is left.
  Match find(std::string_view text, size_t from) const;

  StringMap<Entry> entries_{};
  std::array<std::vector<size_t>, 256> lengths_{};  // by first byte, longest first
};

}  // namespace tessera::text
