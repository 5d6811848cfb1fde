// SPDX-License-Identifier: Apache-2.0
// Python's str operations on UTF-8. Case mapping is the simple one of Unicode, plus the one German
// exception; positions and lengths count code points.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::jinja::strings {

struct CodePoint {
  uint32_t value;  // U+FFFD for broken bytes
  size_t length;   // bytes, at least 1
};

/// The code point at text[pos]; `pos` must be inside.
CodePoint code_point_at(std::string_view text, size_t pos);
void append(std::string& out, uint32_t code_point);
/// Position of the first byte that is not part of valid UTF-8, or npos.
size_t find_invalid(std::string_view text);
/// Number of code points.
size_t length(std::string_view text);

bool is_space(uint32_t code_point);
bool is_printable(uint32_t code_point);
bool is_alpha(uint32_t code_point);
bool is_digit(uint32_t code_point);
bool is_upper(uint32_t code_point);
bool is_lower(uint32_t code_point);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
/// str.title(): a word is a run of letters.
std::string title(std::string_view text);
/// The Jinja filter: a word ends at white space, a hyphen or an opening bracket.
std::string title_filter(std::string_view text);

/// Strips white space, or any of `chars` when given.
std::string_view strip_left(std::string_view text, std::optional<std::string_view> chars = {});
std::string_view strip_right(std::string_view text, std::optional<std::string_view> chars = {});
std::string_view strip(std::string_view text, std::optional<std::string_view> chars = {});

/// First occurrence at or after `from`, npos if none; linear in the size of the text.
size_t find(std::string_view text, std::string_view wanted, size_t from = 0);
size_t rfind(std::string_view text, std::string_view wanted);
std::string replace(std::string_view text, std::string_view old, std::string_view fresh,
                    int64_t max_count);
int64_t count(std::string_view text, std::string_view wanted);

/// Splits at white space (no `separator`) or at each separator; a negative limit means no limit.
std::vector<std::string> split(std::string_view text, std::optional<std::string_view> separator,
                               int64_t max_splits);
std::vector<std::string> rsplit(std::string_view text, std::optional<std::string_view> separator,
                                int64_t max_splits);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends = false);

/// True when there is a character and all of them satisfy `test`.
bool all_of(std::string_view text, bool (*test)(uint32_t));
/// Python's isupper/islower: at least one cased letter and none of the other case.
bool has_only_case(std::string_view text, bool upper_wanted);

/// Byte position of each code point, then the size of the text.
std::vector<size_t> character_starts(std::string_view text);

}  // namespace tessera::jinja::strings
