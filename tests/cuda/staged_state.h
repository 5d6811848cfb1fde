// SPDX-License-Identifier: Apache-2.0
// Slots and pages of a launch on the device: only the parts that an op names, at offsets of their
// own, with the host's page ids.
#pragma once

#include <vector>

#include "cuda/staged_memory.h"

namespace tessera::test {

/// Slots of the sequences of a batch. Name every part, then `upload`.
class StagedSlots {
 public:
  StagedSlots(Staging& staging, const ops::RowBatch& batch) : staging_(staging), batch_(batch) {}

  /// A ring of activations, or of bytes that stay as they are. Returns its place in the device
  /// slot.
  ops::RingRef activation_ring(const ops::RingRef& host);
  ops::RingRef raw_ring(const ops::RingRef& host);
  /// One value per slot.
  size_t single(size_t host_offset, size_t bytes);
  size_t single_activations(size_t host_offset, size_t count);

  /// The batch with device slots and page tables; `spans` keeps them alive.
  ops::RowBatch upload(std::vector<ops::RowSpan>& spans);

 private:
  struct Part {
    size_t host_offset, host_entry, entries, count;
    bool rounded;
    size_t offset, entry;
  };
  size_t add(size_t host_offset, size_t host_entry, size_t entries, bool activations);

  Staging& staging_;
  ops::RowBatch batch_;
  std::vector<Part> parts_{};
  size_t slot_bytes_ = 0;
};

/// Pages of a QSA cache, those that the page tables of the batch name. Index keys take the
/// backend's type.
ops::QsaCache stage_pages(Staging& staging, const ops::Traits& traits, const ops::QsaShape& shape,
                          const ops::QsaCache& host, const ops::RowBatch& batch, bool written);

/// Entries of the page table that a span may read.
size_t page_table_size(const ops::RowSpan& span);

}  // namespace tessera::test
