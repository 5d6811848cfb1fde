// SPDX-License-Identifier: Apache-2.0
// Finds added tokens by their first byte and the few lengths that start with it.
#include "text/tokenizer_added.h"

#include <algorithm>
#include <functional>
#include "text/unicode.h"

namespace tessera::text {

void AddedTokenMatcher::add(std::string text, const AddedToken& token) {
  if (text.empty()) return;
  auto& lengths = lengths_[static_cast<unsigned char>(text[0])];
  const auto at = std::lower_bound(lengths.begin(), lengths.end(), text.size(), std::greater<>());
  if (at == lengths.end() || *at != text.size()) lengths.insert(at, text.size());
  entries_.emplace(std::move(text), Entry{token.id, token.lstrip, token.rstrip, token.special});
}

AddedTokenMatcher::Match AddedTokenMatcher::find(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    for (const size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
      if (length > text.size() - at) continue;
      const auto found = entries_.find(text.substr(at, length));
      if (found != entries_.end()) return {at, length, &found->second};
    }
  }
  return {text.size(), 0, nullptr};
}

void AddedTokenMatcher::split(std::string_view text, bool parse_special,
                              std::vector<AddedPiece>& pieces) const {
  size_t done = 0;
  size_t from = 0;
  while (!entries_.empty()) {
    const Match match = find(text, from);
    if (match.entry == nullptr) break;
    from = match.start + match.length;
    if (!parse_special && match.entry->special) continue;
    size_t start = match.start;
    size_t stop = from;
    if (match.entry->lstrip)
      start = std::max(start - trailing_white_space(text.substr(0, start)), done);
    if (match.entry->rstrip) stop += leading_white_space(text.substr(stop));
    if (done < start) pieces.push_back({-1, text.substr(done, start - done)});
    // White space swallowed by the token before may hold a token of its own: it still counts.
    pieces.push_back({match.entry->id, std::string_view()});
    done = stop;
  }
  if (done < text.size()) pieces.push_back({-1, text.substr(done)});
}

}  // namespace tessera::text
