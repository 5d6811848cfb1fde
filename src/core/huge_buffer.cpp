// SPDX-License-Identifier: Apache-2.0
// An anonymous mapping with the advice to use huge pages.
#include "core/huge_buffer.h"

#include <sys/mman.h>

#include <new>

namespace tessera {

namespace {

std::byte* map_bytes(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  // Advice only, so a refusal changes nothing but speed.
  static_cast<void>(madvise(base, bytes, MADV_HUGEPAGE));
  return static_cast<std::byte*>(base);
}

}  // namespace

HugeBuffer::HugeBuffer(size_t bytes) : data_(map_bytes(bytes), Unmap{bytes}) {}

void HugeBuffer::Unmap::operator()(std::byte* data) const { munmap(data, bytes); }

}  // namespace tessera
