// SPDX-License-Identifier: Apache-2.0
// A frozen copy of a sequence after an exact number of tokens, and the memory of a slot.
#pragma once

#include <tessera/request.h>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "core/arena.h"
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

inline void copy_regions(const StateLayout& layout, Storage storage, const std::byte* from,
                         std::byte* to) {
  for_each_region(layout, storage, [&](const StateEntry&, int, size_t offset, size_t bytes) {
    std::memcpy(to + offset, from + offset, bytes);
  });
}

/// Pages that hold `tokens` tokens.
constexpr size_t pages_for(int64_t tokens) {
  return static_cast<size_t>((tokens + ops::kPageTokens - 1) / ops::kPageTokens);
}

/// Cache-line aligned bytes, not initialised.
class SlotBuffer {
 public:
  SlotBuffer() = default;
  explicit SlotBuffer(size_t bytes)
      : data_(static_cast<std::byte*>(
            std::aligned_alloc(kCacheLine, align_up(bytes == 0 ? 1 : bytes)))) {
    if (!data_) throw std::bad_alloc();
  }
  std::byte* data() const { return data_.get(); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> data_{};
};

/// Immutable. The slot parts are a copy, the pages are shared; the pool lives as long as the
/// snapshot does, and any thread may drop it.
class StateSnapshot {
 public:
  StateSnapshot(std::vector<int32_t> tokens, SlotBuffer slot, PageList pages)
      : tokens_(std::move(tokens)), slot_(std::move(slot)), pages_(std::move(pages)) {}

  /// Ids that the state has absorbed.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::byte* slot() const { return slot_.data(); }
  const PageList& pages() const { return pages_; }

 private:
  std::vector<int32_t> tokens_;
  SlotBuffer slot_;
  PageList pages_;
};

}  // namespace tessera
