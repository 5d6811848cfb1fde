// SPDX-License-Identifier: Apache-2.0
// Chunks grow on demand; a reset merges them, so that a steady launch never allocates.
#include "core/arena.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace tessera {
namespace {
constexpr size_t kMinChunk = size_t{1} << 20;
}

void Arena::Free::operator()(std::byte* chunk) const { std::free(chunk); }

void* Arena::take_bytes(size_t bytes) {
  const size_t wanted = align_up(std::max<size_t>(bytes, 1));
  if (chunks_.empty() || used_ + wanted > chunks_.back().bytes) {
    const size_t size = std::max(wanted, kMinChunk);
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kCacheLine, align_up(size)));
    if (memory == nullptr) throw std::bad_alloc();
    chunks_.push_back({std::unique_ptr<std::byte, Free>(memory), align_up(size)});
    used_ = 0;
  }
  void* result = chunks_.back().data.get() + used_;
  used_ += wanted;
  return result;
}

void Arena::reset() {
  if (chunks_.size() > 1) {
    const size_t total = capacity();
    chunks_.clear();
    used_ = 0;
    take_bytes(total);
  }
  used_ = 0;
}

size_t Arena::capacity() const {
  size_t total = 0;
  for (const Chunk& chunk : chunks_) total += chunk.bytes;
  return total;
}

}  // namespace tessera
