// SPDX-License-Identifier: Apache-2.0
// Byte-pair merges: a scan for short words, a heap for long ones so that no text is quadratic.
#include "text/tokenizer_bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>

namespace tessera::text {
namespace {

constexpr size_t kMaxShortWord = 48;          // up to here rescanning beats the heap
constexpr size_t kMaxWord = size_t{1} << 30;  // positions of the heap are 32 bits
constexpr uint64_t kEmptyPair = UINT64_MAX;
constexpr uint64_t kHashFactor = 0x9E3779B97F4A7C15U;  // 2^64 over the golden ratio
constexpr int kWordBits = 64;
constexpr int kHalfBits = 32;
constexpr size_t kNumBytes = 256;

uint64_t pair_key(int32_t left, int32_t right) {
  return (uint64_t{static_cast<uint32_t>(left)} << kHalfBits) | static_cast<uint32_t>(right);
}

/// A candidate merge; outdated when the pair at `position` is another one by now.
struct Candidate {
  uint32_t rank;
  uint32_t position;
  uint64_t pair;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

/// The word as a linked list of symbols; a merged-away symbol has id -1.
struct Symbol {
  int32_t id;
  int32_t previous;
  int32_t next;
};

class HeapMerge {
 public:
  HeapMerge(const MergeTable& merges, std::vector<Symbol> symbols)
      : merges_(merges), symbols_(std::move(symbols)) {
    for (size_t at = 0; at + 1 < symbols_.size(); ++at) offer(static_cast<int32_t>(at));
  }

  void run() {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const auto position = static_cast<int32_t>(best.position);
      if (pair_at(position) == best.pair) merge(position, merges_.merged(best.rank));
    }
  }

  void append_ids(std::vector<int32_t>& ids) const {
    for (const Symbol& symbol : symbols_)
      if (symbol.id >= 0) ids.push_back(symbol.id);
  }

 private:
  Symbol& at(int32_t position) { return symbols_[static_cast<size_t>(position)]; }

  uint64_t pair_at(int32_t position) {
    const Symbol& left = at(position);
    if (left.id < 0 || left.next < 0) return kEmptyPair;
    return pair_key(left.id, at(left.next).id);
  }

  void offer(int32_t position) {
    const Symbol& left = at(position);
    if (left.next < 0) return;
    const int32_t right_id = at(left.next).id;
    const uint32_t rank = merges_.rank(left.id, right_id);
    if (rank != MergeTable::kNoRank)
      queue_.push({rank, static_cast<uint32_t>(position), pair_key(left.id, right_id)});
  }

  void merge(int32_t position, int32_t merged_id) {
    Symbol& left = at(position);
    Symbol& right = at(left.next);
    left.id = merged_id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) at(left.next).previous = position;
    offer(position);
    if (left.previous >= 0) offer(left.previous);
  }

  const MergeTable& merges_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue_{};
};

}  // namespace

MergeTable::MergeTable(const std::vector<MergeRule>& merges) {
  const size_t num_slots = std::bit_ceil(2 * merges.size() + 2);
  shift_ = kWordBits - std::countr_zero(num_slots);
  slots_.assign(num_slots, {kEmptyPair, kNoRank});
  merged_.reserve(merges.size());
  for (const MergeRule& merge : merges) {
    const uint64_t pair = pair_key(merge.left, merge.right);
    // A repeated pair takes its last rank, as in the reference.
    slots_[slot_of(pair)] = {pair, static_cast<uint32_t>(merged_.size())};
    merged_.push_back(merge.merged);
  }
}

size_t MergeTable::slot_of(uint64_t pair) const {
  size_t slot = (pair * kHashFactor) >> shift_;
  while (slots_[slot].pair != pair && slots_[slot].pair != kEmptyPair)
    slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

uint32_t MergeTable::rank(int32_t left, int32_t right) const {
  return slots_[slot_of(pair_key(left, right))].rank;
}

BpeModel::BpeModel(const TokenizerSpec& spec) : merges_(spec.merges), byte_ids_(kNumBytes, 0) {
  for (size_t id = 0; id < spec.base.size(); ++id) {
    const BaseToken& token = spec.base[id];
    if (!token.is_byte_string) continue;
    if (token.bytes.size() == 1)
      byte_ids_[static_cast<unsigned char>(token.bytes[0])] = static_cast<int32_t>(id);
    if (spec.ignore_merges) whole_words_.emplace(token.bytes, static_cast<int32_t>(id));
  }
}

void BpeModel::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (!whole_words_.empty()) {
    const auto whole = whole_words_.find(word);
    if (whole != whole_words_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  if (word.size() <= kMaxShortWord) return merge_short(word, ids);
  for (size_t start = 0; start < word.size(); start += kMaxWord)
    merge_long(word.substr(start, kMaxWord), ids);
}

void BpeModel::merge_short(std::string_view word, std::vector<int32_t>& ids) const {
  std::array<int32_t, kMaxShortWord> symbols;
  std::array<uint32_t, kMaxShortWord> ranks;  // of the pair that starts here
  size_t count = word.size();
  for (size_t at = 0; at < count; ++at) symbols[at] = byte_id(word[at]);
  for (size_t at = 0; at + 1 < count; ++at) ranks[at] = merges_.rank(symbols[at], symbols[at + 1]);
  while (count > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.begin() + count - 1);
    if (*best == MergeTable::kNoRank) break;
    const auto at = static_cast<size_t>(best - ranks.begin());
    symbols[at] = merges_.merged(*best);
    std::copy(symbols.begin() + at + 2, symbols.begin() + count, symbols.begin() + at + 1);
    std::copy(ranks.begin() + at + 1, ranks.begin() + count - 1, ranks.begin() + at);
    --count;
    if (at + 1 < count) ranks[at] = merges_.rank(symbols[at], symbols[at + 1]);
    if (at > 0) ranks[at - 1] = merges_.rank(symbols[at - 1], symbols[at]);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + count);
}

void BpeModel::merge_long(std::string_view word, std::vector<int32_t>& ids) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  const auto size = static_cast<int32_t>(word.size());
  for (int32_t at = 0; at < size; ++at)
    symbols.push_back(
        {byte_id(word[static_cast<size_t>(at)]), at - 1, at + 1 < size ? at + 1 : -1});
  HeapMerge merge(merges_, std::move(symbols));
  merge.run();
  merge.append_ids(ids);
}

}  // namespace tessera::text
