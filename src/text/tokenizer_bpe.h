// SPDX-License-Identifier: Apache-2.0
// Byte-pair merges: one word of bytes to ids, lowest rank first, leftmost first among equals.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "text/string_map.h"
#include "text/tokenizer_spec.h"

namespace tessera::text {

/// Which two neighbours merge, and how early: open addressing over the pair as one key.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  explicit MergeTable(const std::vector<MergeRule>& merges);
  uint32_t rank(int32_t left, int32_t right) const;
  int32_t merged(uint32_t rank) const { return merged_[rank]; }

 private:
  struct Slot {
    uint64_t pair;
    uint32_t rank;
  };
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;
  std::vector<int32_t> merged_;  // by rank
  int shift_ = 0;
};

class BpeModel {
 public:
  explicit BpeModel(const TokenizerSpec& spec);
  /// Appends the ids of one word; any bytes. Thread-safe.
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  void merge_short(std::string_view word, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view word, std::vector<int32_t>& ids) const;
  int32_t byte_id(char byte) const { return byte_ids_[static_cast<unsigned char>(byte)]; }

  MergeTable merges_;
  std::vector<int32_t> byte_ids_;
  StringMap<int32_t> whole_words_;  // filled when merges are ignored
};

}  // namespace tessera::text
