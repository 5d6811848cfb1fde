// SPDX-License-Identifier: Apache-2.0
// Sequence state as data: one table says what a sequence carries, where it lives and what a
// rejected draft leaves behind. Allocation, fork, snapshot, save and memory accounting are loops
// over it.
#pragma once

#include <tessera/error.h>
#include <tessera/model_info.h>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "ops/rows.h"

namespace tessera {

enum class StatePart : uint8_t {
  kKeys,
  kValues,
  kIndexKeys,
  kRawIndexKeys,
  kPositions,  // int32[3] per slot and QSA layer: a layer reads older entries after another wrote
               // newer ones
  kGdnConv,
  kGdnMatrix,
  kPendingGdn,
  kPleConv,
  kTokenIds,  // int64 per slot
  kWideResidual,
  kPendingDrafts,
  kSampler,
};
inline constexpr int kNumStateParts = 13;

enum class IndexRule : uint8_t {
  kPage,    // in the pages of the sequence, shared by reference count
  kRing,    // slot = position mod ring size, in the sequence's own slot
  kSingle,  // one value per sequence, in its slot
};

/// What a rejected drafted row does to the part.
enum class Rejected : uint8_t {
  kOverwritten,  // the same position is written again before anyone reads it
  kInvisible,    // not reachable until its block completes
  kReplay,       // never applied: accepted rows are replayed next round
  kReplaced,     // the next round writes a whole new value
  kRewound,      // host state goes back to the accepted row
};

/// StatePart::kPendingDrafts: where the last round stopped.
struct DraftCounts {
  int64_t draft_rows = 0;     // that the draft layer holds
  int32_t accepted_rows = 0;  // of StatePart::kPendingGdn, in every layer
};

struct StateEntry {
  StatePart part = StatePart::kKeys;
  const char* name = "";
  IndexRule rule = IndexRule::kSingle;
  Rejected rejected = Rejected::kReplaced;
  std::vector<int> layers{};  // model layers that hold it, ascending; {0} when it is per sequence
  size_t entry_bytes = 0;     // one ring entry, one single value, or one page's share, per layer
  int reach = 0;              // kRing: entries before the current token that are read
  int slots = 1;              // kRing: bit_ceil(max_draft + 1 + reach)
  size_t offset = 0;          // of the first layer, within the slot or the page
  bool host_only = false;     // kept in a host structure, no bytes here

  size_t layer_bytes() const { return entry_bytes * static_cast<size_t>(slots); }
  size_t total_bytes() const { return layer_bytes() * layers.size(); }
};

struct StateOptions {
  DType cache = DType::kF32;       // K and V: kF32, kBF16 or kF8E4M3
  DType index_key = DType::kF32;   // pooled index keys
  DType activation = DType::kF32;  // entries of the rings, the wide residual row
  int max_draft = 5;               // K_max
  bool draft_layer = false;        // reserve the parts of the MTP layer
};

class StateLayout {
 public:
  /// Fails when the block size does not divide the page.
  static Result<StateLayout> make(const ModelConfig& config, const StateOptions& options);

  const StateEntry& entry(StatePart part) const { return entries_[static_cast<size_t>(part)]; }
  std::span<const StateEntry> entries() const { return entries_; }

  /// Byte offset of a layer's part, in the slot (kRing, kSingle) or in a page (kPage).
  size_t offset(StatePart part, int layer) const;
  ops::RingRef ring(StatePart part, int layer) const;
  ops::PageRef page(StatePart part, int layer, std::byte* pool) const;

  size_t slot_bytes() const { return slot_bytes_; }
  size_t page_bytes() const { return page_bytes_; }
  /// Rows that a verify launch may leave pending; 0 without a draft layer.
  int pending_rows() const { return pending_rows_; }
  DType cache_dtype() const { return cache_dtype_; }

 private:
  std::array<StateEntry, kNumStateParts> entries_{};
  size_t slot_bytes_ = 0;
  size_t page_bytes_ = 0;
  int pending_rows_ = 0;
  DType cache_dtype_ = DType::kF32;
  DType index_key_dtype_ = DType::kF32;
};

}  // namespace tessera
