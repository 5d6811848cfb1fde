// SPDX-License-Identifier: Apache-2.0
// Searching, replacing and splitting of strings, as Python's str methods do it.
#include <string.h>

#include <algorithm>

#include "text/jinja/strings.h"

namespace tessera::jinja::strings {
namespace {

constexpr size_t kNone = std::string_view::npos;

size_t skip_spaces(std::string_view text, size_t pos) {
  return pos + (text.size() - pos) - strip_left(text.substr(pos)).size();
}

size_t find_space(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    const auto point = code_point_at(text, pos);
    if (is_space(point.value)) break;
    pos += point.length;
  }
  return pos;
}

std::vector<std::string> split_spaces(std::string_view text, int64_t max_splits) {
  std::vector<std::string> parts;
  size_t pos = skip_spaces(text, 0);
  while (pos < text.size()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.emplace_back(text.substr(pos));
      break;
    }
    const size_t end = find_space(text, pos);
    parts.emplace_back(text.substr(pos, end - pos));
    pos = skip_spaces(text, end);
  }
  return parts;
}

/// Start of the last word of `text`, which ends in a non-space.
size_t last_word(std::string_view text) {
  size_t start = text.size();
  while (start > 0) {
    size_t previous = start - 1;
    while (previous > 0 && (static_cast<unsigned char>(text[previous]) & 0xC0) == 0x80) --previous;
    if (is_space(code_point_at(text, previous).value)) break;
    start = previous;
  }
  return start;
}

std::vector<std::string> rsplit_spaces(std::string_view text, int64_t max_splits) {
  std::vector<std::string> parts;
  text = strip_right(text);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) == max_splits) {
      parts.emplace_back(text);
      break;
    }
    const size_t start = last_word(text);
    parts.emplace_back(text.substr(start));
    text = strip_right(text.substr(0, start));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

bool is_line_end(uint32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

size_t find(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return kNone;
  if (wanted.empty()) return from;
  // memmem is linear whatever the strings are; std::string_view::find is not.
  const void* hit = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return hit == nullptr ? kNone : static_cast<size_t>(static_cast<const char*>(hit) - text.data());
}

size_t rfind(std::string_view text, std::string_view wanted) {
  if (wanted.empty()) return text.size();
  const std::string backwards(text.rbegin(), text.rend());
  const std::string wanted_backwards(wanted.rbegin(), wanted.rend());
  const size_t hit = find(backwards, wanted_backwards);
  return hit == kNone ? kNone : text.size() - hit - wanted.size();
}

std::string replace(std::string_view text, std::string_view old, std::string_view fresh,
                    int64_t max_count) {
  std::string out;
  size_t pos = 0;
  int64_t done = 0;
  while (max_count < 0 || done < max_count) {
    const size_t hit = find(text, old, pos);
    if (hit == kNone) break;
    out.append(text.substr(pos, hit - pos)).append(fresh);
    ++done;
    pos = hit + old.size();
    if (!old.empty()) continue;
    // An empty pattern matches between all characters and at both ends.
    if (pos >= text.size()) break;
    const size_t length = code_point_at(text, pos).length;
    out.append(text.substr(pos, length));
    pos += length;
  }
  return out.append(text.substr(std::min(pos, text.size())));
}

int64_t count(std::string_view text, std::string_view wanted) {
  if (wanted.empty()) return static_cast<int64_t>(length(text)) + 1;
  int64_t hits = 0;
  for (size_t pos = find(text, wanted); pos != kNone; pos = find(text, wanted, pos + wanted.size()))
    ++hits;
  return hits;
}

std::vector<std::string> split(std::string_view text, std::optional<std::string_view> separator,
                               int64_t max_splits) {
  if (!separator) return split_spaces(text, max_splits);
  std::vector<std::string> parts;
  size_t pos = 0;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t hit = find(text, *separator, pos);
    if (hit == kNone) break;
    parts.emplace_back(text.substr(pos, hit - pos));
    pos = hit + separator->size();
  }
  parts.emplace_back(text.substr(pos));
  return parts;
}

std::vector<std::string> rsplit(std::string_view text, std::optional<std::string_view> separator,
                                int64_t max_splits) {
  if (!separator) return rsplit_spaces(text, max_splits);
  const std::string backwards(text.rbegin(), text.rend());
  const std::string wanted(separator->rbegin(), separator->rend());
  std::vector<std::string> parts = split(backwards, wanted, max_splits);
  for (std::string& part : parts) std::reverse(part.begin(), part.end());
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t pos = 0; pos < text.size();) {
    const auto point = code_point_at(text, pos);
    const size_t line_end = pos;
    pos += point.length;
    if (!is_line_end(point.value)) continue;
    if (point.value == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.emplace_back(text.substr(start, (keep_ends ? pos : line_end) - start));
    start = pos;
  }
  if (start < text.size()) lines.emplace_back(text.substr(start));
  return lines;
}

}  // namespace tessera::jinja::strings
