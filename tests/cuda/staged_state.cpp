// SPDX-License-Identifier: Apache-2.0
// Places the parts of slots and pages in device blocks.
#include "cuda/staged_state.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/arena.h"

namespace tessera::test {

size_t StagedSlots::add(size_t host_offset, size_t host_entry, size_t entries, bool activations) {
  const bool rounded = activations && staging_.rounds();
  const size_t count = rounded ? host_entry / sizeof(float) : host_entry;
  const size_t entry = rounded ? count * sizeof(uint16_t) : count;
  const size_t offset = slot_bytes_;
  parts_.push_back({host_offset, host_entry, entries, count, rounded, offset, entry});
  slot_bytes_ += align_up(entry * entries, kDeviceAlign);
  return parts_.size() - 1;
}

ops::RingRef StagedSlots::activation_ring(const ops::RingRef& host) {
  const Part& part =
      parts_[add(host.offset, host.entry_bytes, static_cast<size_t>(host.slots), true)];
  return {part.offset, part.entry, host.slots, host.reach};
}

ops::RingRef StagedSlots::raw_ring(const ops::RingRef& host) {
  const Part& part =
      parts_[add(host.offset, host.entry_bytes, static_cast<size_t>(host.slots), false)];
  return {part.offset, part.entry, host.slots, host.reach};
}

size_t StagedSlots::single(size_t host_offset, size_t bytes) {
  return parts_[add(host_offset, bytes, 1, false)].offset;
}

size_t StagedSlots::single_activations(size_t host_offset, size_t count) {
  return parts_[add(host_offset, count * sizeof(float), 1, true)].offset;
}

ops::RowBatch StagedSlots::upload(std::vector<ops::RowSpan>& spans) {
  spans.assign(batch_.spans.begin(), batch_.spans.end());
  std::map<std::byte*, size_t> places;  // a sequence may have several spans, all but one empty
  for (const ops::RowSpan& span : spans)
    if (span.slot != nullptr) places.emplace(span.slot, places.size() * slot_bytes_);
  std::vector<StagedPiece> pieces;
  for (const auto& [slot, at] : places)
    for (const Part& part : parts_)
      for (size_t entry = 0; entry < part.entries; ++entry)
        pieces.push_back({.host = slot + part.host_offset + entry * part.host_entry,
                          .offset = at + part.offset + entry * part.entry,
                          .count = part.count,
                          .rounded = part.rounded});
  std::byte* base = staging_.block(places.size() * slot_bytes_, std::move(pieces), true);
  for (ops::RowSpan& span : spans) {
    span.pages = staging_.in(span.pages, page_table_size(span));
    if (span.slot != nullptr) span.slot = base + places[span.slot];
  }
  return {spans, batch_.num_rows, batch_.role};
}

size_t page_table_size(const ops::RowSpan& span) {
  const int64_t tokens = span.position + span.num_rows;
  return static_cast<size_t>((tokens + ops::kPageTokens - 1) / ops::kPageTokens);
}

ops::QsaCache stage_pages(Staging& staging, const ops::Traits& traits, const ops::QsaShape& shape,
                          const ops::QsaCache& host, const ops::RowBatch& batch, bool written) {
  const size_t kv_elements =
      static_cast<size_t>(shape.kv_heads) * ops::kPageTokens * static_cast<size_t>(shape.head_dim);
  const size_t index_elements =
      static_cast<size_t>(shape.blocks_per_page()) * static_cast<size_t>(shape.index_dim);
  const bool rounded = traits.index_key == DType::kBF16 && host.index_keys.dtype == DType::kF32;
  const size_t kv_bytes = kv_elements * dtype_bytes(host.keys.dtype);
  const size_t index_host_bytes = index_elements * dtype_bytes(host.index_keys.dtype);

  ops::QsaCache device = host;
  if (rounded) device.index_keys.dtype = DType::kBF16;
  device.keys.offset = 0;
  device.values.offset = align_up(kv_bytes, kDeviceAlign);
  device.index_keys.offset = 2 * device.values.offset;
  const size_t used =
      device.index_keys.offset + index_elements * dtype_bytes(device.index_keys.dtype);
  // A sparse pool of the host stays as wide as it is: its offsets are the point.
  const size_t stride = align_up(std::max(used, host.keys.page_stride), kDeviceAlign);

  std::set<int32_t> ids;
  for (const ops::RowSpan& span : batch.spans)
    if (span.pages != nullptr) ids.insert(span.pages, span.pages + page_table_size(span));
  std::vector<StagedPiece> pieces;
  for (const int32_t id : ids) {
    const size_t at = static_cast<size_t>(id) * stride;
    pieces.push_back({host.keys.page(id), at + device.keys.offset, kv_bytes});
    pieces.push_back({host.values.page(id), at + device.values.offset, kv_bytes});
    pieces.push_back({host.index_keys.page(id), at + device.index_keys.offset,
                      rounded ? index_elements : index_host_bytes, rounded});
  }
  const size_t num_pages = ids.empty() ? 0 : static_cast<size_t>(*ids.rbegin()) + 1;
  std::byte* pool = staging.block(num_pages * stride, std::move(pieces), written);
  for (ops::PageRef* part : {&device.keys, &device.values, &device.index_keys}) {
    part->pool = pool;
    part->page_stride = stride;
  }
  return device;
}

}  // namespace tessera::test
