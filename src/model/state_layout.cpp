// SPDX-License-Identifier: Apache-2.0
// The table of sequence state: which layers hold a part, how large it is and where its bytes lie.
#include "model/state_layout.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "core/arena.h"

namespace tessera {
namespace {

constexpr int kMaxDraftLimit = 63;
constexpr size_t kPositionAxes = 3;
constexpr size_t kTokenSlotBytes = sizeof(int64_t);
/// Frontier and count of the pending drafts.

struct Traits {
  const char* name = nullptr;
  IndexRule rule = IndexRule::kSingle;
  Rejected rejected = Rejected::kReplaced;
};

constexpr Traits traits(StatePart part) {
  switch (part) {
    case StatePart::kKeys: return {"keys", IndexRule::kPage, Rejected::kOverwritten};
    case StatePart::kValues: return {"values", IndexRule::kPage, Rejected::kOverwritten};
    case StatePart::kIndexKeys: return {"index_keys", IndexRule::kPage, Rejected::kInvisible};
    case StatePart::kRawIndexKeys:
      return {"raw_index_keys", IndexRule::kRing, Rejected::kOverwritten};
    case StatePart::kPositions: return {"positions", IndexRule::kRing, Rejected::kOverwritten};
    case StatePart::kGdnConv: return {"gdn_conv", IndexRule::kRing, Rejected::kOverwritten};
    case StatePart::kGdnMatrix: return {"gdn_matrix", IndexRule::kSingle, Rejected::kReplay};
    case StatePart::kPendingGdn: return {"pending_gdn", IndexRule::kSingle, Rejected::kReplaced};
    case StatePart::kPleConv: return {"ple_conv", IndexRule::kRing, Rejected::kOverwritten};
    case StatePart::kTokenIds: return {"token_ids", IndexRule::kRing, Rejected::kOverwritten};
    case StatePart::kWideResidual:
      return {"wide_residual", IndexRule::kSingle, Rejected::kReplaced};
    case StatePart::kPendingDrafts:
      return {"pending_drafts", IndexRule::kSingle, Rejected::kReplaced};
    case StatePart::kSampler: return {"sampler", IndexRule::kSingle, Rejected::kRewound};
  }
  return {};
}

/// The switch above misses no part (a warning otherwise), and no part lies beyond the count.
consteval bool table_is_complete() {
  for (int index = 0; index < kNumStateParts; ++index)
    if (traits(static_cast<StatePart>(index)).name == nullptr) return false;
  return traits(static_cast<StatePart>(kNumStateParts)).name == nullptr;
}
static_assert(table_is_complete(), "every StatePart needs an entry and kNumStateParts counts them");

/// What the config decides about a part.
struct Extent {
  std::vector<int> layers{};
  size_t entry_bytes = 0;
  int reach = 0;
};

std::vector<int> layers_of(const ModelConfig& config, LayerKind kind) {
  std::vector<int> layers;
  for (int layer = 0; layer < config.num_layers(); ++layer)
    if (config.layers[static_cast<size_t>(layer)] == kind) layers.push_back(layer);
  return layers;
}

/// QSA layers, and the draft layer as the one after the last.
std::vector<int> attention_layers(const ModelConfig& config, const StateOptions& options) {
  std::vector<int> layers = layers_of(config, LayerKind::kQsa);
  if (options.draft_layer) layers.push_back(config.num_layers());
  return layers;
}

size_t page_vectors_bytes(int vectors, int dim, DType dtype) {
  return static_cast<size_t>(vectors) * static_cast<size_t>(dim) * dtype_bytes(dtype);
}

size_t floats(int count) { return static_cast<size_t>(count) * sizeof(float); }

size_t matrix_bytes(const ops::GdnShape& shape) {
  return floats(shape.value_heads) * static_cast<size_t>(shape.key_dim) *
         static_cast<size_t>(shape.value_dim);
}

/// A ring entry or a row of `count` activations.
size_t activations(int count, const StateOptions& options) {
  return static_cast<size_t>(count) * dtype_bytes(options.activation);
}

Extent extent(StatePart part, const ModelConfig& config, const StateOptions& options) {
  const ops::QsaShape& qsa = config.qsa;
  const std::vector<int> once{0};
  const std::vector<int> drafting = options.draft_layer ? once : std::vector<int>{};
  switch (part) {
    case StatePart::kKeys:
    case StatePart::kValues:
      return {attention_layers(config, options),
              page_vectors_bytes(qsa.kv_heads * ops::kPageTokens, qsa.head_dim, options.cache)};
    case StatePart::kIndexKeys:
      return {attention_layers(config, options),
              page_vectors_bytes(qsa.blocks_per_page(), qsa.index_dim, options.index_key)};
    case StatePart::kRawIndexKeys:
      return {attention_layers(config, options), activations(qsa.index_dim, options),
              qsa.block - 1};
    case StatePart::kPositions:
      // Per layer: a layer reads what its own last launch left before it writes the new positions.
      return {attention_layers(config, options), kPositionAxes * sizeof(int32_t), qsa.block - 1};
    case StatePart::kGdnConv:
      return {layers_of(config, LayerKind::kGdn), activations(config.gdn.channels(), options),
              config.gdn.conv_kernel - 1};
    case StatePart::kGdnMatrix:
      return {layers_of(config, LayerKind::kGdn), matrix_bytes(config.gdn)};
    case StatePart::kPendingGdn:
      return {options.draft_layer ? layers_of(config, LayerKind::kGdn) : std::vector<int>{},
              ops::GdnPending{config.gdn}.bytes(options.max_draft + 1)};
    case StatePart::kPleConv:
      return {config.ple.layers, activations(config.wide(), options), config.ple.conv_reach()};
    case StatePart::kTokenIds: return {once, kTokenSlotBytes, config.ple.ngram_size - 1};
    case StatePart::kWideResidual: return {once, activations(config.wide(), options)};
    case StatePart::kPendingDrafts: return {drafting, sizeof(DraftCounts)};
    case StatePart::kSampler: return {once, 0};
  }
  return {};
}

StateEntry make_entry(StatePart part, Extent extent, int max_draft) {
  const Traits row = traits(part);
  StateEntry entry;
  entry.part = part;
  entry.name = row.name;
  entry.rule = row.rule;
  entry.rejected = row.rejected;
  entry.layers = std::move(extent.layers);
  entry.entry_bytes = extent.entry_bytes;
  entry.host_only = part == StatePart::kSampler;
  if (row.rule == IndexRule::kRing) {
    entry.reach = std::max(extent.reach, 0);
    const auto rows_alive = static_cast<unsigned>(max_draft + 1 + entry.reach);
    entry.slots = static_cast<int>(std::bit_ceil(rows_alive));
  }
  return entry;
}

/// Layers of a part follow each other at cache-line multiples.
size_t layer_stride(const StateEntry& entry) { return align_up(entry.layer_bytes()); }

}  // namespace

Result<StateLayout> StateLayout::make(const ModelConfig& config, const StateOptions& options) {
  const int block = config.qsa.block;
  if (block <= 0 || ops::kPageTokens % block != 0)
    return fail({.code = Errc::kUnsupported,
                 .what = "index block does not divide a page",
                 .where = "indexer_compress_ratio",
                 .expected = "a divisor of " + std::to_string(ops::kPageTokens),
                 .found = std::to_string(block)});
  if (options.max_draft < 0 || options.max_draft > kMaxDraftLimit)
    return fail({.code = Errc::kInvalidArgument,
                 .what = "draft depth out of range",
                 .where = "max_draft",
                 .expected = "0 to " + std::to_string(kMaxDraftLimit),
                 .found = std::to_string(options.max_draft)});
  StateLayout layout;
  layout.cache_dtype_ = options.cache;
  layout.index_key_dtype_ = options.index_key;
  layout.pending_rows_ = options.draft_layer ? options.max_draft + 1 : 0;
  for (int index = 0; index < kNumStateParts; ++index) {
    const auto part = static_cast<StatePart>(index);
    StateEntry entry = make_entry(part, extent(part, config, options), options.max_draft);
    size_t& end = entry.rule == IndexRule::kPage ? layout.page_bytes_ : layout.slot_bytes_;
    entry.offset = end;
    end += layer_stride(entry) * entry.layers.size();
    layout.entries_[static_cast<size_t>(index)] = std::move(entry);
  }
  return layout;
}

size_t StateLayout::offset(StatePart part, int layer) const {
  const StateEntry& row = entry(part);
  const auto found = std::lower_bound(row.layers.begin(), row.layers.end(), layer);
  assert(found != row.layers.end() && *found == layer);
  return row.offset + layer_stride(row) * static_cast<size_t>(found - row.layers.begin());
}

ops::RingRef StateLayout::ring(StatePart part, int layer) const {
  const StateEntry& row = entry(part);
  assert(row.rule == IndexRule::kRing);
  return {.offset = offset(part, layer),
          .entry_bytes = row.entry_bytes,
          .slots = row.slots,
          .reach = row.reach};
}

ops::PageRef StateLayout::page(StatePart part, int layer, std::byte* pool) const {
  assert(entry(part).rule == IndexRule::kPage);
  return {.pool = pool,
          .page_stride = page_bytes_,
          .offset = offset(part, layer),
          .dtype = part == StatePart::kIndexKeys ? index_key_dtype_ : cache_dtype_};
}

}  // namespace tessera
