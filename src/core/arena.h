// SPDX-License-Identifier: Apache-2.0
// Bump allocator for the buffers of one launch: reset is free, memory is kept and reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/memory.h"

namespace tessera {

inline constexpr size_t kCacheLine = 64;

/// Returns `value` rounded up to a multiple of `unit` (a power of two).
constexpr size_t align_up(size_t value, size_t unit = kCacheLine) {
  return (value + unit - 1) & ~(unit - 1);
}

class Arena {
 public:
  Arena() : Arena(host_memory()) {}
  /// `memory` must outlive the arena.
  explicit Arena(Memory& memory) : memory_(&memory) {}

  /// Uninitialised memory, 64-byte aligned, valid until the next reset.
  template <class T>
  T* take(size_t count) {
    return static_cast<T*>(take_bytes(count * sizeof(T)));
  }
  void* take_bytes(size_t bytes);

  /// Forgets every allocation; several chunks are merged into one so that steady state never
  /// allocates.
  void reset();
  size_t capacity() const;
  /// Where the first allocation after a reset will lie; equal bases mean equal addresses for equal
  /// allocations, as long as they fit.
  const std::byte* base() const { return chunks_.empty() ? nullptr : chunks_.front().data(); }

 private:
  Memory* memory_;
  std::vector<MemoryBlock> chunks_{};
  size_t used_ = 0;  // of the last chunk
};

}  // namespace tessera
