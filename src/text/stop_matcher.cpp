// SPDX-License-Identifier: Apache-2.0
// One Knuth-Morris-Pratt automaton per stop string; the furthest of them says what to hold back.
#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace tessera::text {
namespace {

constexpr size_t kMaxStopBytes = 64 * 1024;

std::vector<size_t> borders_of(const std::string& text) {
  std::vector<size_t> border(text.size() + 1, 0);
  size_t length = 0;
  for (size_t at = 1; at < text.size(); ++at) {
    while (length > 0 && text[at] != text[length]) length = border[length];
    if (text[at] == text[length]) ++length;
    border[at + 1] = length;
  }
  return border;
}

tl::unexpected<Error> refuse(std::string expected, std::string found) {
  return fail({.code = Errc::kInvalidArgument,
               .what = "bad stop string",
               .where = "stop",
               .expected = std::move(expected),
               .found = std::move(found)});
}

}  // namespace

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stop_strings) {
  StopMatcher matcher;
  size_t num_bytes = 0;
  for (std::string& text : stop_strings) {
    if (text.empty()) return refuse("at least one character", "an empty string");
    num_bytes += text.size();
    if (num_bytes > kMaxStopBytes) return refuse("at most 64 KiB together", "more");
    Pattern pattern{.text = std::move(text)};
    pattern.border = borders_of(pattern.text);
    matcher.patterns_.push_back(std::move(pattern));
  }
  return matcher;
}

void StopMatcher::advance(Pattern& pattern, char byte) {
  while (pattern.matched > 0 && pattern.text[pattern.matched] != byte)
    pattern.matched = pattern.border[pattern.matched];
  if (pattern.text[pattern.matched] == byte) ++pattern.matched;
}

std::string StopMatcher::push(std::string_view chunk) {
  if (stopped()) return {};
  for (const char byte : chunk) {
    held_.push_back(byte);
    size_t longest_hit = 0;
    for (size_t index = 0; index < patterns_.size(); ++index) {
      advance(patterns_[index], byte);
      const size_t length = patterns_[index].text.size();
      if (patterns_[index].matched < length || length <= longest_hit) continue;
      longest_hit = length;
      hit_ = static_cast<int>(index);
    }
    if (!stopped()) continue;
    held_.resize(held_.size() - longest_hit);
    return std::exchange(held_, {});
  }
  size_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max(keep, pattern.matched);
  std::string safe = held_.substr(0, held_.size() - keep);
  held_.erase(0, safe.size());
  return safe;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

}  // namespace tessera::text
