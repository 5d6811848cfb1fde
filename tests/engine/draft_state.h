// SPDX-License-Identifier: Apache-2.0
// What the draft layer keeps of a sequence, as bytes to compare.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/loaded_model.h"

namespace tessera::test {

/// The draft layer's part of the pages for rows before `rows`.
inline std::vector<std::byte> draft_state(const LoadedModel& model, SequenceId id, int64_t rows) {
  const StateLayout& layout = model.layout();
  const int layer = model.config().num_layers();
  const ops::RowSpan span = model.store().span(id, 0, 0);
  std::vector<std::byte> bytes;
  for (const StatePart part : {StatePart::kKeys, StatePart::kValues, StatePart::kIndexKeys}) {
    const StateEntry& entry = layout.entry(part);
    const bool by_block = part == StatePart::kIndexKeys;
    const int64_t per = by_block ? model.config().qsa.blocks_per_page() : ops::kPageTokens;
    const int64_t heads = by_block ? 1 : model.config().qsa.kv_heads;
    const int64_t count = by_block ? rows / model.config().qsa.block : rows;
    const size_t share = entry.entry_bytes / static_cast<size_t>(per * heads);
    for (int64_t at = 0; at < count; ++at)
      for (int64_t head = 0; head < heads; ++head) {
        const std::byte* from = model.store().pool().page(span.pages[at / per]) +
                                layout.offset(part, layer) +
                                static_cast<size_t>(head * per + at % per) * share;
        bytes.insert(bytes.end(), from, from + share);
      }
  }
  return bytes;
}

}  // namespace tessera::test
