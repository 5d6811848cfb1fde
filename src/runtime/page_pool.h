// SPDX-License-Identifier: Apache-2.0
// Pages of the K, V and index-key caches: one fixed range of addresses, handed out page by page
// and counted by reference. Thread-safe.
#pragma once

#include <tessera/error.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/memory.h"

namespace tessera {

/// The host's memory, which is always there.
inline std::shared_ptr<Memory> unowned_host_memory() {
  return std::shared_ptr<Memory>(std::shared_ptr<Memory>(), &host_memory());
}

class PagePool {
 public:
  /// On the host, addresses are reserved for `capacity` pages and memory is taken when a page is
  /// first handed out; a device's memory is taken at once. The pool keeps `memory` alive.
  static Result<std::shared_ptr<PagePool>> make(
      size_t page_bytes, int32_t capacity, std::shared_ptr<Memory> memory = unowned_host_memory());
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  /// Page `id` is at base() + id * page_bytes(); the base never moves.
  std::byte* base() const { return base_; }
  std::byte* page(int32_t id) const { return base_ + static_cast<size_t>(id) * page_bytes_; }
  size_t page_bytes() const { return page_bytes_; }
  Memory& memory() const { return *memory_; }
  int32_t capacity() const { return capacity_; }

  int32_t used() const;
  int32_t ref_count(int32_t id) const;

  /// Zeroed pages with one reference each, lowest free ids first. All or none: kOutOfMemory.
  Result<std::vector<int32_t>> allocate(int64_t count);
  void add_ref(std::span<const int32_t> ids);
  /// Frees the pages whose last reference this was.
  void release(std::span<const int32_t> ids) noexcept;

 private:
  PagePool(std::shared_ptr<Memory> memory, MemoryBlock block, std::byte* base, size_t mapped_bytes,
           size_t page_bytes, int32_t capacity);

  Result<void> commit_up_to(int32_t pages);
  int32_t take_lowest();
  void free_page(int32_t id) noexcept;
  void return_memory(int32_t id) noexcept;

  std::shared_ptr<Memory> memory_;  // first: it holds the rest
  MemoryBlock block_;               // a device's pages; empty on the host
  std::byte* base_;
  size_t mapped_bytes_;
  size_t page_bytes_;
  int32_t capacity_;
  size_t max_dirty_free_;  // free pages that keep their memory

  mutable std::mutex mutex_;
  size_t committed_bytes_ = 0;
  int32_t used_ = 0;
  std::vector<int32_t> refs_{};  // of every page ever handed out
  std::vector<bool> dirty_{};    // may hold something else than zeros
  std::vector<int32_t> free_{};  // min-heap
  size_t dirty_free_ = 0;
};

/// Pages of one holder, in token order; owns one reference to each.
class PageList {
 public:
  explicit PageList(std::shared_ptr<PagePool> pool) : pool_(std::move(pool)) {}
  ~PageList() { clear(); }
  PageList(PageList&& other) noexcept = default;
  PageList& operator=(PageList&& other) noexcept;
  PageList(const PageList&) = delete;
  PageList& operator=(const PageList&) = delete;

  std::span<const int32_t> ids() const { return ids_; }
  size_t size() const { return ids_.size(); }
  const std::shared_ptr<PagePool>& pool() const { return pool_; }

  /// Appends fresh pages until there are `pages` of them. All or none.
  Result<void> grow_to(size_t pages);
  /// Gives back the pages behind the first `pages`.
  void shrink_to(size_t pages) noexcept;
  /// Replaces pages from index `first` on that somebody else holds too; `copy(from, to)` moves the
  /// bytes.
  template <class Copy>
  Result<void> make_private(size_t first, Copy&& copy);
  /// A second holder of the first `pages` pages.
  PageList share(size_t pages) const;
  void clear() noexcept;

 private:
  std::shared_ptr<PagePool> pool_;
  std::vector<int32_t> ids_{};
};

template <class Copy>
Result<void> PageList::make_private(size_t first, Copy&& copy) {
  std::vector<size_t> shared;
  for (size_t index = first; index < ids_.size(); ++index)
    if (pool_->ref_count(ids_[index]) > 1) shared.push_back(index);
  Result<std::vector<int32_t>> fresh = pool_->allocate(static_cast<int64_t>(shared.size()));
  if (!fresh) return fail(std::move(fresh.error()));
  for (size_t entry = 0; entry < shared.size(); ++entry) {
    int32_t& id = ids_[shared[entry]];
    const int32_t old = id;
    id = (*fresh)[entry];
    copy(pool_->page(old), pool_->page(id));
    pool_->release({&old, 1});
  }
  return {};
}

}  // namespace tessera
