// SPDX-License-Identifier: Apache-2.0
// Reserves addresses once, commits memory as pages are handed out, counts references.
#include "runtime/page_pool.h"

#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cassert>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <utility>

#include "core/arena.h"

namespace tessera {
namespace {

constexpr size_t kKeepBytes = size_t{64} << 20;    // memory that free pages may hold on to
constexpr size_t kFirstPages = 64;                 // room for bookkeeping at first
constexpr size_t kCommitBytes = size_t{16} << 20;  // addresses made usable at once

size_t system_page() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

Result<std::shared_ptr<PagePool>> PagePool::make(size_t page_bytes, int32_t capacity,
                                                 std::shared_ptr<Memory> memory) {
  const auto count = static_cast<size_t>(std::max(capacity, 0));
  if (page_bytes == 0 || count == 0 ||
      page_bytes > (std::numeric_limits<size_t>::max() / 2) / count)
    return fail(
        {.code = Errc::kInvalidArgument,
         .what = "page pool of impossible size",
         .expected = "at least one page of at least one byte",
         .found = std::to_string(capacity) + " pages of " + std::to_string(page_bytes) + " bytes"});
  if (!memory->on_host()) {
    try {
      MemoryBlock block(*memory, page_bytes * count);
      std::byte* base = block.data();
      return std::shared_ptr<PagePool>(
          new PagePool(memory, std::move(block), base, 0, page_bytes, capacity));
    } catch (const std::bad_alloc&) {
      return fail({.code = Errc::kOutOfMemory,
                   .what = "no device memory for the page pool",
                   .expected = std::to_string(page_bytes * count) + " bytes",
                   .found = std::to_string(memory->free_bytes()) + " free",
                   .hint = "lower the context length or the number of sequences"});
    }
  }
  const size_t bytes = align_up(page_bytes * count, system_page());
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return fail({.code = Errc::kOutOfMemory,
                 .what = "cannot reserve addresses for the page pool",
                 .expected = std::to_string(bytes) + " bytes",
                 .found = std::strerror(errno),
                 .hint = "lower the context length or the number of sequences"});
  // Selected blocks are scattered: with small system pages every gather waits for the page table.
  // Advice only, so a refusal changes nothing but speed.
  static_cast<void>(madvise(base, bytes, MADV_HUGEPAGE));
  return std::shared_ptr<PagePool>(
      new PagePool(memory, {}, static_cast<std::byte*>(base), bytes, page_bytes, capacity));
}

PagePool::PagePool(std::shared_ptr<Memory> memory, MemoryBlock block, std::byte* base,
                   size_t mapped_bytes, size_t page_bytes, int32_t capacity)
    : memory_(std::move(memory)),
      block_(std::move(block)),
      base_(base),
      mapped_bytes_(mapped_bytes),
      page_bytes_(page_bytes),
      capacity_(capacity),
      max_dirty_free_(memory_->on_host() ? kKeepBytes / page_bytes
                                         : std::numeric_limits<size_t>::max()) {}

PagePool::~PagePool() {
  if (!block_) munmap(base_, mapped_bytes_);
}

int32_t PagePool::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

int32_t PagePool::ref_count(int32_t id) const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(id) < refs_.size() ? refs_[static_cast<size_t>(id)] : 0;
}

Result<void> PagePool::commit_up_to(int32_t pages) {
  if (block_) return {};
  const size_t needed = static_cast<size_t>(pages) * page_bytes_;
  if (needed <= committed_bytes_) return {};
  const size_t wanted = std::min(align_up(needed, kCommitBytes), mapped_bytes_);
  if (mprotect(base_ + committed_bytes_, wanted - committed_bytes_, PROT_READ | PROT_WRITE) != 0)
    return fail(
        {.code = Errc::kOutOfMemory,
         .what = "no memory for cache pages",
         .expected = std::to_string(wanted) + " bytes",
         .found = std::to_string(committed_bytes_) + " bytes (" + std::strerror(errno) + ")"});
  committed_bytes_ = wanted;
  return {};
}

int32_t PagePool::take_lowest() {
  if (free_.empty()) {
    if (refs_.size() == refs_.capacity()) {
      refs_.reserve(std::max(2 * refs_.size(), kFirstPages));
      // Releasing must never allocate: destructors call it.
      free_.reserve(refs_.capacity());
    }
    dirty_.push_back(static_cast<bool>(block_));  // a device's memory is not zero at first
    refs_.push_back(0);
    return static_cast<int32_t>(refs_.size() - 1);
  }
  std::pop_heap(free_.begin(), free_.end(), std::greater<>());
  const int32_t id = free_.back();
  free_.pop_back();
  if (dirty_[static_cast<size_t>(id)]) --dirty_free_;
  return id;
}

Result<std::vector<int32_t>> PagePool::allocate(int64_t count) {
  assert(count >= 0);
  std::vector<int32_t> ids;
  const std::lock_guard lock(mutex_);
  if (count > capacity_ - used_)
    return fail(
        {.code = Errc::kOutOfMemory,
         .what = "no free cache pages",
         .expected = std::to_string(count) + " pages",
         .found = std::to_string(capacity_ - used_) + " free of " + std::to_string(capacity_),
         .hint = "wait for running requests, or raise the context length or the number "
                 "of sequences"});
  const int64_t fresh = std::max<int64_t>(count - static_cast<int64_t>(free_.size()), 0);
  const auto top = static_cast<int32_t>(static_cast<int64_t>(refs_.size()) + fresh);
  if (Result<void> done = commit_up_to(top); !done) return fail(std::move(done.error()));
  ids.reserve(static_cast<size_t>(count));
  for (int64_t taken = 0; taken < count; ++taken) {
    const int32_t id = take_lowest();
    refs_[static_cast<size_t>(id)] = 1;
    if (dirty_[static_cast<size_t>(id)]) memory_->zero(page(id), page_bytes_);
    dirty_[static_cast<size_t>(id)] = true;
    ++used_;
    ids.push_back(id);
  }
  return ids;
}

void PagePool::add_ref(std::span<const int32_t> ids) {
  const std::lock_guard lock(mutex_);
  for (const int32_t id : ids) {
    assert(refs_[static_cast<size_t>(id)] > 0);
    ++refs_[static_cast<size_t>(id)];
  }
}

void PagePool::release(std::span<const int32_t> ids) noexcept {
  const std::lock_guard lock(mutex_);
  for (const int32_t id : ids) {
    int32_t& refs = refs_[static_cast<size_t>(id)];
    assert(refs > 0);
    if (--refs == 0) free_page(id);
  }
}

void PagePool::free_page(int32_t id) noexcept {
  --used_;
  free_.push_back(id);
  std::push_heap(free_.begin(), free_.end(), std::greater<>());
  if (dirty_free_ < max_dirty_free_)
    ++dirty_free_;
  else
    return_memory(id);
}

void PagePool::return_memory(int32_t id) noexcept {
  const auto unit = system_page();
  const size_t begin = static_cast<size_t>(id) * page_bytes_;
  const size_t end = begin + page_bytes_;
  const size_t inner_begin = align_up(begin, unit);
  const size_t inner_end = end / unit * unit;
  if (inner_begin >= inner_end ||
      madvise(base_ + inner_begin, inner_end - inner_begin, MADV_DONTNEED) != 0) {
    ++dirty_free_;
    return;
  }
  // System pages at the edges belong to the neighbours too.
  std::memset(base_ + begin, 0, inner_begin - begin);
  std::memset(base_ + inner_end, 0, end - inner_end);
  dirty_[static_cast<size_t>(id)] = false;
}

PageList& PageList::operator=(PageList&& other) noexcept {
  if (this != &other) {
    clear();
    pool_ = std::move(other.pool_);
    ids_ = std::move(other.ids_);
    other.ids_.clear();
  }
  return *this;
}

Result<void> PageList::grow_to(size_t pages) {
  if (pages <= ids_.size()) return {};
  ids_.reserve(pages);
  Result<std::vector<int32_t>> fresh = pool_->allocate(static_cast<int64_t>(pages - ids_.size()));
  if (!fresh) return fail(std::move(fresh.error()));
  ids_.insert(ids_.end(), fresh->begin(), fresh->end());
  return {};
}

void PageList::shrink_to(size_t pages) noexcept {
  if (pages >= ids_.size()) return;
  pool_->release(std::span(ids_).subspan(pages));
  ids_.resize(pages);
}

PageList PageList::share(size_t pages) const {
  PageList second(pool_);
  second.ids_.assign(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(pages));
  pool_->add_ref(second.ids_);
  return second;
}

void PageList::clear() noexcept {
  if (!ids_.empty()) pool_->release(ids_);
  ids_.clear();
}

}  // namespace tessera
