// SPDX-License-Identifier: Apache-2.0
// Character classes, case mapping and stripping.
#include "text/jinja/strings.h"

#include <utf8proc.h>
#include <algorithm>

#include "text/unicode.h"

namespace tessera::jinja::strings {
namespace {

constexpr uint32_t kSharpS = 0xDF;
constexpr uint32_t kReplacementPoint = 0xFFFD;

utf8proc_category_t category(uint32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

void append_upper(std::string& out, uint32_t code_point) {
  if (code_point == kSharpS) {
    out += "SS";
    return;
  }
  const auto mapped = utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point));
  append(out, static_cast<uint32_t>(mapped));
}

void append_title(std::string& out, uint32_t code_point) {
  if (code_point == kSharpS) {
    out += "Ss";
    return;
  }
  const auto mapped = utf8proc_totitle(static_cast<utf8proc_int32_t>(code_point));
  append(out, static_cast<uint32_t>(mapped));
}

void append_lower(std::string& out, uint32_t code_point) {
  const auto mapped = utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point));
  append(out, static_cast<uint32_t>(mapped));
}

template <class Fn>
void for_each(std::string_view text, Fn&& fn) {
  for (size_t pos = 0; pos < text.size();) {
    const auto point = code_point_at(text, pos);
    fn(point.value);
    pos += point.length;
  }
}

/// What strip() removes; sorted, because a template may give a very long list.
class StripSet {
 public:
  explicit StripSet(std::optional<std::string_view> chars) : spaces_(!chars) {
    if (!chars) return;
    for_each(*chars, [&](uint32_t code_point) { sorted_.push_back(code_point); });
    std::sort(sorted_.begin(), sorted_.end());
  }
  bool contains(uint32_t code_point) const {
    return spaces_ ? is_space(code_point)
                   : std::binary_search(sorted_.begin(), sorted_.end(), code_point);
  }

 private:
  bool spaces_;
  std::vector<uint32_t> sorted_{};
};

bool is_cased(uint32_t code_point) {
  return is_upper(code_point) || is_lower(code_point) ||
         category(code_point) == UTF8PROC_CATEGORY_LT;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t pos) {
  const auto step = tessera::text::decode_utf8(text.substr(pos));
  const bool valid = step.status == tessera::text::Utf8Status::kValid;
  return {valid ? static_cast<uint32_t>(step.code_point) : kReplacementPoint,
          static_cast<size_t>(step.length)};
}

void append(std::string& out, uint32_t code_point) {
  tessera::text::append_utf8(static_cast<char32_t>(code_point), out);
}

size_t find_invalid(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const auto step = tessera::text::decode_utf8(text.substr(pos));
    if (step.status != tessera::text::Utf8Status::kValid) return pos;
    pos += static_cast<size_t>(step.length);
  }
  return std::string_view::npos;
}

size_t length(std::string_view text) {
  size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_printable(uint32_t code_point) {
  if (code_point == ' ') return true;
  switch (category(code_point)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

bool is_alpha(uint32_t code_point) {
  const auto kind = category(code_point);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(uint32_t code_point) { return category(code_point) == UTF8PROC_CATEGORY_ND; }
bool is_upper(uint32_t code_point) { return category(code_point) == UTF8PROC_CATEGORY_LU; }
bool is_lower(uint32_t code_point) { return category(code_point) == UTF8PROC_CATEGORY_LL; }

std::string upper(std::string_view text) {
  std::string out;
  for_each(text, [&](uint32_t code_point) { append_upper(out, code_point); });
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for_each(text, [&](uint32_t code_point) { append_lower(out, code_point); });
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  bool first = true;
  for_each(text, [&](uint32_t code_point) {
    first ? append_title(out, code_point) : append_lower(out, code_point);
    first = false;
  });
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for_each(text, [&](uint32_t code_point) {
    in_word ? append_lower(out, code_point) : append_title(out, code_point);
    in_word = is_cased(code_point);
  });
  return out;
}

std::string title_filter(std::string_view text) {
  std::string out;
  bool in_word = false;
  for_each(text, [&](uint32_t code_point) {
    constexpr std::string_view kWordEnds = "-({[<";
    const bool ends_word = is_space(code_point) ||
                           (code_point < 0x80 && kWordEnds.find(static_cast<char>(code_point)) !=
                                                     std::string_view::npos);
    in_word ? append_lower(out, code_point) : append_upper(out, code_point);
    in_word = !ends_word;
  });
  return out;
}

std::string_view strip_left(std::string_view text, std::optional<std::string_view> chars) {
  const StripSet stripped(chars);
  while (!text.empty()) {
    const auto point = code_point_at(text, 0);
    if (!stripped.contains(point.value)) break;
    text.remove_prefix(point.length);
  }
  return text;
}

std::string_view strip_right(std::string_view text, std::optional<std::string_view> chars) {
  const StripSet stripped(chars);
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    if (!stripped.contains(code_point_at(text, start).value)) break;
    text = text.substr(0, start);
  }
  return text;
}

std::string_view strip(std::string_view text, std::optional<std::string_view> chars) {
  return strip_right(strip_left(text, chars), chars);
}

bool all_of(std::string_view text, bool (*test)(uint32_t)) {
  bool all = !text.empty();
  for_each(text, [&](uint32_t code_point) { all = all && test(code_point); });
  return all;
}

bool has_only_case(std::string_view text, bool upper_wanted) {
  bool found = false;
  bool other = false;
  for_each(text, [&](uint32_t code_point) {
    const bool matches = upper_wanted ? is_upper(code_point) : is_lower(code_point);
    found = found || matches;
    other = other || (!matches && is_cased(code_point));
  });
  return found && !other;
}

std::vector<size_t> character_starts(std::string_view text) {
  std::vector<size_t> starts;
  size_t pos = 0;
  for (; pos < text.size(); pos += code_point_at(text, pos).length) starts.push_back(pos);
  starts.push_back(pos);
  return starts;
}

}  // namespace tessera::jinja::strings
