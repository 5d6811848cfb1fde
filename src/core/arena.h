// SPDX-License-Identifier: Apache-2.0
// Bump allocator for the buffers of one launch: reset is free, memory is kept and reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tessera {

inline constexpr size_t kCacheLine = 64;

/// Returns `value` rounded up to a multiple of `unit` (a power of two).
constexpr size_t align_up(size_t value, size_t unit = kCacheLine) {
  return (value + unit - 1) & ~(unit - 1);
}

class Arena {
 public:
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

 private:
  struct Free {
    void operator()(std::byte* chunk) const;
  };
  struct Chunk {
    std::unique_ptr<std::byte, Free> data;
    size_t bytes = 0;
  };
  std::vector<Chunk> chunks_{};
  size_t used_ = 0;  // of the last chunk
};

}  // namespace tessera
