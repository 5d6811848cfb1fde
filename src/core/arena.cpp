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

void* Arena::take_bytes(size_t bytes) {
  const size_t wanted = align_up(std::max<size_t>(bytes, 1));
  if (chunks_.empty() || used_ + wanted > chunks_.back().bytes()) {
    chunks_.emplace_back(*memory_, std::max(wanted, kMinChunk));
    used_ = 0;
  }
  void* result = chunks_.back().data() + used_;
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
  for (const MemoryBlock& chunk : chunks_) total += chunk.bytes();
  return total;
}

}  // namespace tessera
