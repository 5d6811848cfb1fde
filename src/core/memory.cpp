// SPDX-License-Identifier: Apache-2.0
// Host memory: copies are plain copies.
#include "core/memory.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "core/arena.h"

namespace tessera {
namespace {

constexpr size_t kAlignment = 256;

class HostMemory final : public Memory {
 public:
  std::byte* allocate(size_t bytes) override {
    void* data = std::aligned_alloc(kAlignment, align_up(bytes, kAlignment));
    if (data == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data) noexcept override { std::free(data); }
  void copy_in(void* to, const void* host_from, size_t bytes) override {
    copy(to, host_from, bytes);
  }
  void copy_out(void* host_to, const void* from, size_t bytes) override {
    copy(host_to, from, bytes);
  }
  void copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void zero(void* to, size_t bytes) override {
    if (bytes > 0) std::memset(to, 0, bytes);
  }
  size_t free_bytes() const override { return 0; }
  bool on_host() const override { return true; }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace tessera
