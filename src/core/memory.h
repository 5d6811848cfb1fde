// SPDX-License-Identifier: Apache-2.0
// Where a backend keeps weights, state and buffers: the host's memory or a device's. Host code
// never dereferences a pointer into it, it copies.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace tessera {

class Memory {
 public:
  virtual ~Memory() = default;

  /// At least 256-byte aligned, not initialised. Throws std::bad_alloc.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;

  /// Copies are ordered with the ops of the backend that owns this memory. The source of `copy_in`
  /// may be changed on return; `copy_out` has arrived on return.
  virtual void copy_in(void* to, const void* host_from, size_t bytes) = 0;
  virtual void copy_out(void* host_to, const void* from, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void zero(void* to, size_t bytes) = 0;

  /// Bytes that can still be allocated, for sizing the page pool; 0 when the system decides.
  virtual size_t free_bytes() const = 0;
  /// Whether host code may dereference pointers into it.
  virtual bool on_host() const = 0;
};

/// The memory of the CPU backends.
Memory& host_memory();

struct MemoryRelease {
  Memory* memory = nullptr;
  void operator()(std::byte* data) const { memory->release(data); }
};

/// Bytes that belong to one owner.
class MemoryBlock {
 public:
  MemoryBlock() = default;
  MemoryBlock(Memory& memory, size_t bytes)
      : data_(memory.allocate(bytes == 0 ? 1 : bytes), MemoryRelease{&memory}), bytes_(bytes) {}

  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::unique_ptr<std::byte, MemoryRelease> data_{};
  size_t bytes_ = 0;
};

}  // namespace tessera
