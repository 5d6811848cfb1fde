// SPDX-License-Identifier: Apache-2.0
// The state of a sequence copied to the host, whatever memory it lies in, and cut into the bytes
// that later launches may read.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/loaded_model.h"

namespace tessera::test {

class HostState {
 public:
  /// Settles the sequence first.
  HostState(LoadedModel& model, SequenceId id) : model_(model) {
    model.settle(id);
    const ops::RowSpan span = model.store().span(id, 0, 0);
    length_ = span.position;
    slot_ = copy(span.slot, model.layout().slot_bytes());
    const auto pages = static_cast<size_t>((length_ + ops::kPageTokens - 1) / ops::kPageTokens);
    std::vector<int32_t> page_ids(pages);
    model.ops().memory().copy_out(page_ids.data(), span.pages, pages * sizeof(int32_t));
    for (const int32_t page : page_ids)
      pages_.push_back(copy(model.store().pool().page(page), model.layout().page_bytes()));
  }

  /// Every part of the trunk, in table order: what lies beyond the committed length, and rows that
  /// were applied, do not belong to the state.
  std::vector<std::byte> trunk() {
    std::vector<std::byte> bytes;
    for (const StateEntry& entry : model_.layout().entries()) {
      if (entry.host_only || entry.part == StatePart::kPendingGdn ||
          entry.part == StatePart::kPendingDrafts)
        continue;
      for (const int layer : entry.layers) {
        if (layer == model_.config().num_layers()) continue;
        if (entry.rule == IndexRule::kSingle)
          append(slot_.data() + model_.layout().offset(entry.part, layer), entry.entry_bytes,
                 bytes);
        else if (entry.rule == IndexRule::kRing)
          append_ring(entry, layer, bytes);
        else
          append_pages(entry, layer, length_, bytes);
      }
    }
    return bytes;
  }

  /// The draft layer's part of the pages for rows before `rows`, which the sequence has absorbed.
  std::vector<std::byte> draft_layer(int64_t rows) const {
    std::vector<std::byte> bytes;
    for (const StatePart part : {StatePart::kKeys, StatePart::kValues, StatePart::kIndexKeys})
      append_pages(model_.layout().entry(part), model_.config().num_layers(), rows, bytes);
    return bytes;
  }

  const std::byte* ring_entry(StatePart part, int layer, int64_t position) {
    return model_.layout().ring(part, layer).entry(slot_.data(), position);
  }

 private:
  std::vector<std::byte> copy(const std::byte* from, size_t count) const {
    std::vector<std::byte> bytes(count);
    model_.ops().memory().copy_out(bytes.data(), from, count);
    return bytes;
  }
  static void append(const std::byte* from, size_t count, std::vector<std::byte>& bytes) {
    bytes.insert(bytes.end(), from, from + count);
  }
  void append_ring(const StateEntry& entry, int layer, std::vector<std::byte>& bytes) {
    for (int64_t at = std::max<int64_t>(length_ - entry.reach, 0); at < length_; ++at)
      append(ring_entry(entry.part, layer, at), entry.entry_bytes, bytes);
  }
  /// K and V of a page lie head by head: one token's share of each head.
  void append_pages(const StateEntry& entry, int layer, int64_t rows,
                    std::vector<std::byte>& bytes) const {
    const bool by_block = entry.part == StatePart::kIndexKeys;
    const ops::QsaShape& shape = model_.config().qsa;
    const int64_t per = by_block ? shape.blocks_per_page() : ops::kPageTokens;
    const int64_t heads = by_block ? 1 : shape.kv_heads;
    const int64_t count = by_block ? rows / shape.block : rows;
    const size_t share = entry.entry_bytes / static_cast<size_t>(per * heads);
    for (int64_t at = 0; at < count; ++at)
      for (int64_t head = 0; head < heads; ++head)
        append(pages_[static_cast<size_t>(at / per)].data() +
                   model_.layout().offset(entry.part, layer) +
                   static_cast<size_t>(head * per + at % per) * share,
               share, bytes);
  }

  LoadedModel& model_;
  int64_t length_ = 0;
  std::vector<std::byte> slot_{};
  std::vector<std::vector<std::byte>> pages_{};
};

}  // namespace tessera::test
