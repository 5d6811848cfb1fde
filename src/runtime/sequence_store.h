// SPDX-License-Identifier: Apache-2.0
// Every running sequence: its slot, its pages and the tokens it has absorbed. Copying, clearing,
// freezing and restoring are loops over the state table. Used by one thread at a time.
#pragma once

#include <tessera/error.h>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/state_layout.h"
#include "ops/rows.h"
#include "runtime/page_pool.h"
#include "runtime/state_snapshot.h"

namespace tessera {

/// Index of a slot; reused after destroy(). Passing an id that is not alive is a bug.
using SequenceId = int32_t;

class SequenceStore {
 public:
  /// `layout` must outlive the store. Slots take memory when they are first used.
  SequenceStore(const StateLayout& layout, std::shared_ptr<PagePool> pool, int max_sequences);

  /// An empty sequence whose slot is zero, whoever used it before. kOutOfMemory: none is free.
  Result<SequenceId> create();
  void destroy(SequenceId id);

  /// Makes sure that pages exist for positions below `tokens`. All or none: kOutOfMemory.
  Result<void> reserve(SequenceId id, int64_t tokens);
  /// Whether `reserve` leaves the page ids where they are, so that `pages` of older spans stay
  /// valid.
  bool keeps_table(SequenceId id, int64_t tokens) const;
  /// Gives back pages that no position below `tokens` needs; at least the committed ones stay.
  void trim(SequenceId id, int64_t tokens);
  /// Positions that the pages of the sequence have room for.
  int64_t capacity(SequenceId id) const;
  /// Copies pages from `first_position` on that a fork or a snapshot shares: call it before rows
  /// at or after that position are written. All or none: kOutOfMemory.
  Result<void> prepare_write(SequenceId id, int64_t first_position);
  /// The state has absorbed these ids; only now do their pages count for forks and snapshots.
  void commit(SequenceId id, std::span<const int32_t> ids);

  /// The next rows of the sequence. `pages` stays valid until the next call for this sequence that
  /// is not const.
  ops::RowSpan span(SequenceId id, int row_begin, int num_rows) const;
  /// Rows at another place of the sequence, written before (the draft layer's); pages as above.
  ops::RowSpan span_at(SequenceId id, int64_t position, int row_begin, int num_rows) const;
  int64_t length(SequenceId id) const { return static_cast<int64_t>(tokens(id).size()); }
  const std::vector<int32_t>& tokens(SequenceId id) const { return at(id).tokens; }
  std::byte* slot(SequenceId id) const { return at(id).slot.data(); }

  /// Accepted rows that the DeltaNet matrices have still to absorb (StatePart::kPendingGdn). A
  /// sequence with such rows cannot be forked or frozen.
  int pending_rows(SequenceId id) const { return at(id).pending_rows; }
  void set_pending_rows(SequenceId id, int rows) { at(id).pending_rows = rows; }

  /// A second sequence in the same state. kOutOfMemory: no free slot.
  Result<SequenceId> fork(SequenceId id);
  std::shared_ptr<const StateSnapshot> snapshot(SequenceId id) const;
  /// A sequence that continues from the snapshot. kMismatch: it belongs to another pool.
  Result<SequenceId> restore(const StateSnapshot& snapshot);

  PagePool& pool() const { return *pool_; }
  const std::shared_ptr<PagePool>& shared_pool() const { return pool_; }
  int num_live() const { return num_live_; }
  int max_sequences() const { return static_cast<int>(sequences_.size()); }

 private:
  struct Sequence {
    explicit Sequence(std::shared_ptr<PagePool> pool) : pages(std::move(pool)) {}
    bool live = false;
    MemoryBlock slot{};
    PageList pages;
    MemoryBlock table{};  // the page ids, where the ops read them
    std::vector<int32_t> tokens{};
    int pending_rows = 0;
  };

  const Sequence& at(SequenceId id) const;
  Sequence& at(SequenceId id);
  Result<SequenceId> take_slot();
  void publish_pages(Sequence& sequence, size_t first);
  Memory& memory() const { return pool_->memory(); }
  Result<SequenceId> adopt(std::vector<int32_t> tokens, const std::byte* slot, PageList pages);
  bool owns_pages(const Sequence& sequence, int64_t begin, int64_t end) const;
  size_t committed_pages(const Sequence& sequence) const;

  const StateLayout& layout_;
  std::shared_ptr<PagePool> pool_;
  std::vector<Sequence> sequences_{};
  int num_live_ = 0;
};

}  // namespace tessera
