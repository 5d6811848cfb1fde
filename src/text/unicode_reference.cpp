// SPDX-License-Identifier: Apache-2.0
// Unicode as the reference library sees it: its NFC is older than utf8proc, its regex classes are
// newer than PCRE2.
#include <utf8proc.h>
#include <algorithm>
#include <iterator>
#include <vector>
#include "text/unicode.h"

namespace tessera::text {
namespace {

struct StandIn {
  char32_t first;
  char32_t last;
  char32_t stand_in;
};
struct CodePointRange {
  char32_t first;
  char32_t last;
};

#include "text/unicode_tables.inc"

constexpr char32_t kFirstCombiningMark = 0x300;
constexpr CodePointRange kHangulJamo = {0x1100, 0x11FF};
constexpr CodePointRange kHangulSyllables = {0xAC00, 0xD7A3};
constexpr auto kNfcOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
constexpr size_t kMaxDecomposition = 8;  // the longest canonical one has four code points

/// The entry of a sorted table that holds `code_point`, or null.
template <class Range, size_t kSize>
const Range* find_range(const Range (&table)[kSize], char32_t code_point) {
  const Range* found =
      std::lower_bound(std::begin(table), std::end(table), code_point,
                       [](const Range& range, char32_t value) { return range.last < value; });
  return found != std::end(table) && found->first <= code_point ? found : nullptr;
}

/// Most CJK text lies between two entries of the table; asking first makes the scan cheap.
constexpr CodePointRange kNoStandInsCjk = {0x31F0, 0xA7CA};

const StandIn* find_stand_in(char32_t code_point) {
  if (code_point < kStandIns[0].first) return nullptr;
  if (code_point >= kNoStandInsCjk.first && code_point <= kNoStandInsCjk.last) return nullptr;
  return find_range(kStandIns, code_point);
}

bool is_unknown_to_nfc(char32_t code_point) {
  return code_point >= kUnknownToNfc[0].first && find_range(kUnknownToNfc, code_point) != nullptr;
}

bool is_within(CodePointRange range, char32_t code_point) {
  return code_point >= range.first && code_point <= range.last;
}

/// True for characters that NFC leaves alone whatever comes before them: no canonical
/// decomposition, class 0, never the second half of a composition. May say no too often, not yes.
bool is_inert(char32_t code_point) {
  if (code_point < kFirstCombiningMark || is_within(kHangulSyllables, code_point)) return true;
  if (is_within(kHangulJamo, code_point)) return false;
  const utf8proc_property_t* property =
      utf8proc_get_property(static_cast<utf8proc_int32_t>(code_point));
  switch (property->category) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return is_unknown_to_nfc(code_point);
    default: return property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0;
  }
}

using CodePoints = std::vector<utf8proc_int32_t>;

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

constexpr int kCodePointBits = 21;
constexpr int kClassShift = 56;  // leaves 35 bits for the position inside a run

/// Stable sort of one run of marks by class: one key holds class, position and code point.
/// utf8proc's own ordering is quadratic in the run, which untrusted text could exploit.
void order_run(CodePoints::iterator first, CodePoints::iterator last) {
  const auto by_class = [](auto left, auto right) {
    return combining_class(left) < combining_class(right);
  };
  if (std::is_sorted(first, last, by_class)) return;
  std::vector<uint64_t> keys;
  for (auto point = first; point != last; ++point)
    keys.push_back((static_cast<uint64_t>(combining_class(*point)) << kClassShift) |
                   (static_cast<uint64_t>(point - first) << kCodePointBits) |
                   static_cast<uint64_t>(*point));
  std::sort(keys.begin(), keys.end());
  std::transform(keys.begin(), keys.end(), first, [](uint64_t key) {
    return static_cast<utf8proc_int32_t>(key & ((uint64_t{1} << kCodePointBits) - 1));
  });
}

/// Canonical order: only marks (class above 0) that follow each other change places.
void order_marks(CodePoints& points) {
  auto run = points.begin();
  while (run != points.end()) {
    run = std::find_if(run, points.end(), [](auto point) { return combining_class(point) != 0; });
    const auto end =
        std::find_if(run, points.end(), [](auto point) { return combining_class(point) == 0; });
    order_run(run, end);
    run = end;
  }
}

void append_decomposed(char32_t code_point, CodePoints& points) {
  utf8proc_int32_t buffer[kMaxDecomposition];
  int boundclass = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), buffer,
                                             kMaxDecomposition, kNfcOptions, &boundclass);
  points.insert(points.end(), buffer, buffer + std::max<utf8proc_ssize_t>(count, 0));
}

/// Composes what was gathered and appends it to `out`.
void flush_composed(CodePoints& points, std::string& out) {
  if (points.empty()) return;
  order_marks(points);
  const auto length = utf8proc_normalize_utf32(
      points.data(), static_cast<utf8proc_ssize_t>(points.size()), kNfcOptions);
  for (utf8proc_ssize_t index = 0; index < length; ++index)
    append_utf8(static_cast<char32_t>(points[static_cast<size_t>(index)]), out);
  points.clear();
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    if (!is_inert(step.code_point)) return false;
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  return true;
}

std::string to_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  CodePoints pending;  // from one inert character (kept back: marks may join it) to the next
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(at));
    at += static_cast<size_t>(step.length);
    if (is_unknown_to_nfc(step.code_point)) {
      flush_composed(pending, out);
      append_utf8(step.code_point, out);
      continue;
    }
    if (is_inert(step.code_point)) flush_composed(pending, out);
    append_decomposed(step.code_point, pending);
  }
  flush_composed(pending, out);
  return out;
}

bool needs_stand_ins(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0xE0) {  // the first differing character takes three bytes
      ++at;
      continue;
    }
    const Utf8Step step = decode_utf8(text.substr(at));
    if (find_stand_in(step.code_point) != nullptr) return true;
    at += static_cast<size_t>(step.length);
  }
  return false;
}

std::string with_stand_ins(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    const StandIn* found = find_stand_in(step.code_point);
    append_utf8(found != nullptr ? found->stand_in : step.code_point, out);
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  return out;
}

bool range_needs_stand_ins(char32_t first, char32_t last) {
  return std::any_of(std::begin(kStandIns), std::end(kStandIns), [=](const StandIn& entry) {
    return entry.first <= last && first <= entry.last;
  });
}

}  // namespace tessera::text
