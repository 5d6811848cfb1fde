// SPDX-License-Identifier: Apache-2.0
// Slots and pages of sequences: taking, growing, copying on write, forking, restoring.
#include "runtime/sequence_store.h"

#include <algorithm>
#include <cassert>

namespace tessera {

SequenceStore::SequenceStore(const StateLayout& layout, std::shared_ptr<PagePool> pool,
                             int max_sequences)
    : layout_(layout), pool_(std::move(pool)) {
  assert(max_sequences > 0);
  assert(pool_->page_bytes() == layout.page_bytes());
  sequences_.reserve(static_cast<size_t>(max_sequences));
  for (int id = 0; id < max_sequences; ++id) sequences_.emplace_back(pool_);
}

const SequenceStore::Sequence& SequenceStore::at(SequenceId id) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(id)];
  assert(sequence.live);
  return sequence;
}

SequenceStore::Sequence& SequenceStore::at(SequenceId id) {
  return const_cast<Sequence&>(std::as_const(*this).at(id));
}

size_t SequenceStore::committed_pages(const Sequence& sequence) const {
  return pages_for(static_cast<int64_t>(sequence.tokens.size()));
}

Result<SequenceId> SequenceStore::take_slot() {
  for (size_t index = 0; index < sequences_.size(); ++index) {
    Sequence& sequence = sequences_[index];
    if (sequence.live) continue;
    if (!sequence.slot) sequence.slot = MemoryBlock(memory(), layout_.slot_bytes());
    sequence.live = true;
    ++num_live_;
    return static_cast<SequenceId>(index);
  }
  return fail({.code = Errc::kOutOfMemory,
               .what = "no free sequence slot",
               .expected = "fewer than " + std::to_string(sequences_.size()) + " sequences",
               .found = std::to_string(num_live_),
               .hint = "wait for a running request, or raise max_sequences"});
}

Result<SequenceId> SequenceStore::create() {
  Result<SequenceId> id = take_slot();
  if (!id) return id;
  std::byte* slot = at(*id).slot.data();
  for_each_piece(layout_, Storage::kSlot, [this, slot](size_t offset, size_t bytes) {
    memory().zero(slot + offset, bytes);
  });
  return id;
}

void SequenceStore::destroy(SequenceId id) {
  Sequence& sequence = at(id);
  sequence.pages.clear();
  sequence.tokens = {};
  sequence.pending_rows = 0;
  sequence.live = false;
  --num_live_;
}

/// Copies page ids from index `first` on to where the ops read them.
void SequenceStore::publish_pages(Sequence& sequence, size_t first) {
  constexpr size_t kFirstEntries = 64;
  const std::span<const int32_t> ids = sequence.pages.ids();
  if (sequence.table.bytes() < ids.size_bytes()) {
    const size_t bytes = std::max(2 * ids.size_bytes(), kFirstEntries * sizeof(int32_t));
    sequence.table = MemoryBlock(memory(), bytes);
    first = 0;
  }
  if (first >= ids.size()) return;
  const std::span<const int32_t> changed = ids.subspan(first);
  memory().copy_in(sequence.table.data() + first * sizeof(int32_t), changed.data(),
                   changed.size_bytes());
}

Result<void> SequenceStore::reserve(SequenceId id, int64_t tokens) {
  Sequence& sequence = at(id);
  const size_t held = sequence.pages.size();
  Result<void> grown = sequence.pages.grow_to(pages_for(tokens));
  if (sequence.pages.size() > held) publish_pages(sequence, held);
  return grown;
}

bool SequenceStore::keeps_table(SequenceId id, int64_t tokens) const {
  return pages_for(tokens) * sizeof(int32_t) <= at(id).table.bytes();
}

void SequenceStore::trim(SequenceId id, int64_t tokens) {
  Sequence& sequence = at(id);
  sequence.pages.shrink_to(std::max(pages_for(tokens), committed_pages(sequence)));
}

int64_t SequenceStore::capacity(SequenceId id) const {
  return static_cast<int64_t>(at(id).pages.size()) * ops::kPageTokens;
}

Result<void> SequenceStore::prepare_write(SequenceId id, int64_t first_position) {
  assert(first_position >= 0);
  const auto first_page = static_cast<size_t>(first_position / ops::kPageTokens);
  Sequence& sequence = at(id);
  bool copied = false;
  auto done = sequence.pages.make_private(first_page, [&](const std::byte* from, std::byte* to) {
    copy_regions(memory(), layout_, Storage::kPage, from, to);
    copied = true;
  });
  if (copied) publish_pages(sequence, first_page);
  return done;
}

void SequenceStore::commit(SequenceId id, std::span<const int32_t> ids) {
  Sequence& sequence = at(id);
  sequence.tokens.insert(sequence.tokens.end(), ids.begin(), ids.end());
  assert(committed_pages(sequence) <= sequence.pages.size());
}

bool SequenceStore::owns_pages(const Sequence& sequence, int64_t begin, int64_t end) const {
  const auto first = static_cast<size_t>(begin / ops::kPageTokens);
  const std::span<const int32_t> written =
      sequence.pages.ids().subspan(first, pages_for(end) - first);
  return std::all_of(written.begin(), written.end(),
                     [this](int32_t id) { return pool_->ref_count(id) == 1; });
}

ops::RowSpan SequenceStore::span(SequenceId id, int row_begin, int num_rows) const {
  return span_at(id, length(id), row_begin, num_rows);
}

ops::RowSpan SequenceStore::span_at(SequenceId id, int64_t position, int row_begin,
                                    int num_rows) const {
  const Sequence& sequence = at(id);
  assert(pages_for(position + num_rows) <= sequence.pages.size());
  assert(num_rows == 0 || owns_pages(sequence, position, position + num_rows));
  return {.row_begin = row_begin,
          .num_rows = num_rows,
          .position = position,
          .slot = sequence.slot.data(),
          .pages = reinterpret_cast<const int32_t*>(sequence.table.data())};
}

Result<SequenceId> SequenceStore::adopt(std::vector<int32_t> tokens, const std::byte* slot,
                                        PageList pages) {
  Result<SequenceId> id = take_slot();
  if (!id) return id;
  Sequence& sequence = at(*id);
  copy_regions(memory(), layout_, Storage::kSlot, slot, sequence.slot.data());
  sequence.tokens = std::move(tokens);
  sequence.pages = std::move(pages);
  publish_pages(sequence, 0);
  return id;
}

Result<SequenceId> SequenceStore::fork(SequenceId id) {
  const Sequence& source = at(id);
  assert(source.pending_rows == 0);
  return adopt(source.tokens, source.slot.data(), source.pages.share(committed_pages(source)));
}

std::shared_ptr<const StateSnapshot> SequenceStore::snapshot(SequenceId id) const {
  const Sequence& source = at(id);
  assert(source.pending_rows == 0);
  MemoryBlock slot(memory(), layout_.slot_bytes());
  copy_regions(memory(), layout_, Storage::kSlot, source.slot.data(), slot.data());
  return std::make_shared<const StateSnapshot>(source.tokens, std::move(slot),
                                               source.pages.share(committed_pages(source)));
}

Result<SequenceId> SequenceStore::restore(const StateSnapshot& snapshot) {
  const PageList& pages = snapshot.pages();
  if (pages.pool() != pool_)
    return fail({.code = Errc::kMismatch,
                 .what = "state belongs to another engine",
                 .hint = "save it to a file and load it here"});
  return adopt(snapshot.tokens(), snapshot.slot(), pages.share(pages.size()));
}

}  // namespace tessera
