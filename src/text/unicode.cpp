// SPDX-License-Identifier: Apache-2.0
// UTF-8 decoding by maximal subparts, replacement of errors, white space at the ends.
#include "text/unicode.h"

#include <cstdint>
#include <cstring>

namespace tessera::text {
namespace {

struct LeadByte {
  int length;  // 0: not a lead byte
  unsigned char second_min;
  unsigned char second_max;
};

/// Table 3-7 of the Unicode standard: the second byte rules out overlong forms, surrogates and
/// values above U+10FFFF.
constexpr LeadByte classify_lead(unsigned char byte) {
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

constexpr char32_t kContinuationBits = 6;
constexpr char32_t kContinuationMask = 0x3F;

bool is_ascii_word(const char* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return (word & 0x8080808080808080U) == 0;
}

/// Length of the ASCII prefix.
size_t ascii_run(std::string_view text) {
  size_t at = 0;
  while (at + sizeof(uint64_t) <= text.size() && is_ascii_word(text.data() + at))
    at += sizeof(uint64_t);
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

bool is_white_space(char32_t code_point) {
  if (code_point <= 0x20) return code_point == 0x20 || (code_point >= 0x09 && code_point <= 0x0D);
  switch (code_point) {
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000: return true;
    default: return code_point >= 0x2000 && code_point <= 0x200A;
  }
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

Utf8Step decode_utf8(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return {Utf8Status::kValid, first, 1};
  const LeadByte lead = classify_lead(first);
  if (lead.length == 0) return {Utf8Status::kInvalid, 0, 1};
  char32_t code_point = first & (0x7FU >> lead.length);
  for (int index = 1; index < lead.length; ++index) {
    if (static_cast<size_t>(index) == text.size()) return {Utf8Status::kIncomplete, 0, index};
    const auto byte = static_cast<unsigned char>(text[static_cast<size_t>(index)]);
    const unsigned char low = index == 1 ? lead.second_min : 0x80;
    const unsigned char high = index == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {Utf8Status::kInvalid, 0, index};
    code_point = (code_point << kContinuationBits) | (byte & kContinuationMask);
  }
  return {Utf8Status::kValid, code_point, lead.length};
}

bool is_valid_utf8(std::string_view text) {
  while (!text.empty()) {
    text.remove_prefix(ascii_run(text));
    if (text.empty()) return true;
    const Utf8Step step = decode_utf8(text);
    if (step.status != Utf8Status::kValid) return false;
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  return true;
}

size_t append_complete_utf8(std::string_view text, std::string& out) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t ascii = ascii_run(text.substr(at));
    out.append(text, at, ascii);
    at += ascii;
    if (at == text.size()) break;
    const Utf8Step step = decode_utf8(text.substr(at));
    if (step.status == Utf8Status::kIncomplete) break;
    const auto length = static_cast<size_t>(step.length);
    out.append(step.status == Utf8Status::kValid ? text.substr(at, length) : kReplacement);
    at += length;
  }
  return at;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  const auto continuation = [&](int steps) {
    const char32_t shifted = code_point >> (kContinuationBits * static_cast<char32_t>(steps));
    put(0x80 | (shifted & kContinuationMask));
  };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> kContinuationBits));
    continuation(0);
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> (2 * kContinuationBits)));
    continuation(1);
    continuation(0);
  } else {
    put(0xF0 | (code_point >> (3 * kContinuationBits)));
    continuation(2);
    continuation(1);
    continuation(0);
  }
}

size_t leading_white_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = decode_utf8(text.substr(at));
    if (!is_white_space(step.code_point)) break;
    at += static_cast<size_t>(step.length);
  }
  return at;
}

size_t trailing_white_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && is_continuation(text[start])) --start;
    if (!is_white_space(decode_utf8(text.substr(start, end - start)).code_point)) break;
    end = start;
  }
  return text.size() - end;
}

}  // namespace tessera::text
