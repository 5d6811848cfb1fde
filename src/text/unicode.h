// SPDX-License-Identifier: Apache-2.0
// UTF-8 as untrusted bytes: decode by maximal subparts, replace what is broken, white space.
#pragma once

#include <string>
#include <string_view>

namespace tessera::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Status {
  kValid,
  kInvalid,     // `length` bytes stand for one U+FFFD
  kIncomplete,  // the text ends inside a code point that more bytes could still complete
};

struct Utf8Step {
  Utf8Status status;
  char32_t code_point;  // only when valid
  int length;           // bytes, at least 1
};

/// First step of a non-empty text. Broken bytes are grouped as the Unicode standard recommends: the
/// longest prefix of a well-formed sequence is one error, every other byte is one of its own.
Utf8Step decode_utf8(std::string_view text);

bool is_valid_utf8(std::string_view text);

/// Appends `text` to `out` with every error as U+FFFD; stops before an incomplete end and returns
/// the number of bytes read.
size_t append_complete_utf8(std::string_view text, std::string& out);

void append_utf8(char32_t code_point, std::string& out);

/// Bytes of Unicode White_Space at either end of valid UTF-8.
size_t leading_white_space(std::string_view text);
size_t trailing_white_space(std::string_view text);

/// Canonical composition (NFC) of valid UTF-8 as the reference library computes it, whose tables
/// are older than ours. Linear up to the sort inside a run of combining marks.
bool is_surely_nfc(std::string_view text);
std::string to_nfc(std::string_view text);

/// The reference classifies characters by a newer Unicode than PCRE2. True when `text` (valid
/// UTF-8) has a character on which they differ; the copy replaces each such character by an older
/// one of the same category and the same number of bytes, so offsets stay valid.
bool needs_stand_ins(std::string_view text);
std::string with_stand_ins(std::string_view text);
/// Whether a range of code points holds a character that has a stand-in.
bool range_needs_stand_ins(char32_t first, char32_t last);

}  // namespace tessera::text
