// SPDX-License-Identifier: Apache-2.0
// A frozen copy of a sequence after an exact number of tokens, and walks over its parts.
#pragma once

#include <tessera/request.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/memory.h"
#include "model/state_layout.h"
#include "runtime/page_pool.h"

namespace tessera {

enum class Storage : uint8_t { kSlot, kPage };

/// Calls fn(entry, layer, offset, bytes) for every stored region of a slot or of a page, in table
/// order: whatever walks the state goes through here, so no part can be forgotten.
template <class Fn>
void for_each_region(const StateLayout& layout, Storage storage, Fn&& fn) {
  for (const StateEntry& entry : layout.entries()) {
    const bool paged = entry.rule == IndexRule::kPage;
    if (entry.host_only || paged != (storage == Storage::kPage)) continue;
    for (const int layer : entry.layers)
      fn(entry, layer, layout.offset(entry.part, layer), entry.layer_bytes());
  }
}

/// Calls fn(offset, bytes) for the same bytes in as few pieces as possible: on a device every piece
/// is a copy of its own.
template <class Fn>
void for_each_piece(const StateLayout& layout, Storage storage, Fn&& fn) {
  size_t begin = 0, end = 0;
  for_each_region(layout, storage, [&](const StateEntry&, int, size_t offset, size_t bytes) {
    if (offset != end) {
      if (end > begin) fn(begin, end - begin);
      begin = offset;
    }
    end = offset + bytes;
  });
  if (end > begin) fn(begin, end - begin);
}

inline void copy_regions(Memory& memory, const StateLayout& layout, Storage storage,
                         const std::byte* from, std::byte* to) {
  for_each_piece(layout, storage, [&](size_t offset, size_t bytes) {
    memory.copy(to + offset, from + offset, bytes);
  });
}

/// Pages that hold `tokens` tokens.
constexpr size_t pages_for(int64_t tokens) {
  return static_cast<size_t>((tokens + ops::kPageTokens - 1) / ops::kPageTokens);
}

/// Immutable. The slot parts are a copy, the pages are shared; the pool and its memory live as long
/// as the snapshot does, and any thread may drop it.
class StateSnapshot {
 public:
  StateSnapshot(std::vector<int32_t> tokens, MemoryBlock slot, PageList pages)
      : tokens_(std::move(tokens)), pages_(std::move(pages)), slot_(std::move(slot)) {}

  /// Ids that the state has absorbed.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::byte* slot() const { return slot_.data(); }
  const PageList& pages() const { return pages_; }

 private:
  std::vector<int32_t> tokens_;
  PageList pages_;  // before the slot: their pool keeps the memory of both alive
  MemoryBlock slot_;
};

}  // namespace tessera
