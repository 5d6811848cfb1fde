// SPDX-License-Identifier: Apache-2.0
// Which kernels of Gated DeltaNet run and how their work is cut: plain numbers, tested without a
// device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "cuda/gpu_spec.h"
#include "ops/gdn.h"

namespace tessera::cuda {

/// Geometry of the sm_90a kernels; the number of heads is free.
inline constexpr int kGdnDim = 128;  // of keys and of values
inline constexpr int kGdnTaps = 4;
inline constexpr size_t kGdnMatrixBytes = size_t{kGdnDim} * kGdnDim * sizeof(float);  // of a head

/// Empty when the sm_90a kernels take these arguments, else the reason why not.
constexpr std::string_view supports_gdn_sm90(const ops::GdnArgs& args, const GpuSpec& gpu) {
  constexpr size_t kVectorBytes = 16;
  const auto aligned = [](size_t offset) { return offset % kVectorBytes == 0; };
  if (!gpu.is_hopper()) return "not an sm_90 device";
  if (args.shape.key_dim != kGdnDim) return "key dim is not 128";
  if (args.shape.value_dim != kGdnDim) return "value dim is not 128";
  if (args.shape.conv_kernel != kGdnTaps) return "convolution is not of 4 taps";
  if (!aligned(args.conv_ring.offset) || !aligned(args.conv_ring.entry_bytes))
    return "ring entries are not 16-byte aligned";
  if (!aligned(args.matrix_offset)) return "the matrix is not 16-byte aligned";
  if (args.verify && !aligned(args.pending_offset)) return "pending rows are not 16-byte aligned";
  return {};
}

/// How the value heads of all sequences are spread over blocks in decode launches. The bits do not
/// depend on it: columns of the matrix do not interact, and the norm adds halves in one order.
struct GdnDecodePlan {
  int blocks_per_head = 1;  // two form a cluster
  bool alone = false;       // a block has a multiprocessor to itself

  constexpr bool operator==(const GdnDecodePlan&) const = default;
};

constexpr GdnDecodePlan plan_gdn_decode(int num_spans, int value_heads, const GpuSpec& gpu) {
  constexpr int kHalves = 2;
  const int64_t heads = int64_t{num_spans} * value_heads;
  if (heads * kHalves <= gpu.num_sms) return {.blocks_per_head = kHalves, .alone = true};
  return {.alone = heads <= gpu.num_sms};
}

/// Whether a launch may overwrite ring entries that its own first rows read: then its rows enter
/// the ring in a later launch. Never so for the 1..K_max + 1 rows of recorded decode launches.
constexpr bool stores_ring_later(const ops::RowBatch& batch, const ops::RingRef& ring) {
  int longest = 0;
  for (const ops::RowSpan& span : batch.spans) longest = std::max(longest, span.num_rows);
  return batch.role == ops::Role::kPrefill || longest + ring.reach > ring.slots;
}

/// Chunks of all spans get slots without a running sum: span s starts at slot row_begin / 64 + 2 s
/// and has at most num_rows / 64 + 2 chunks, so that slots of two spans never meet; some stay
/// empty.
constexpr int gdn_first_slot(int row_begin, int span_index) {
  return row_begin / ops::kGdnChunk + 2 * span_index;
}
constexpr int gdn_num_slots(int num_rows, int num_spans) {
  return gdn_first_slot(num_rows, num_spans);
}

/// Rows of one span between two lines of the absolute grid.
struct GdnChunkRows {
  int first = 0;  // row within the span
  int rows = 0;   // at most 0: the span has no such chunk
};
constexpr GdnChunkRows gdn_chunk_rows(int64_t position, int num_rows, int chunk) {
  const auto phase = static_cast<int>(position % ops::kGdnChunk);
  const int begin = chunk * ops::kGdnChunk - phase;
  const int first = begin > 0 ? begin : 0;
  const int end = begin + ops::kGdnChunk < num_rows ? begin + ops::kGdnChunk : num_rows;
  return {first, end - first};
}

constexpr int gdn_num_chunks(int64_t position, int num_rows) {
  const auto phase = static_cast<int>(position % ops::kGdnChunk);
  return num_rows == 0 ? 0 : (phase + num_rows + ops::kGdnChunk - 1) / ops::kGdnChunk;
}

/// Prompt launches run window by window, so that scratch memory is bounded and mostly stays in L2.
/// A few more slots than 2048 rows fill: the slots that stay empty take no window of their own.
inline constexpr int kGdnWindowSlots = 36;

/// Slots of a window: all windows of a launch are alike.
constexpr int plan_gdn_window(int slots) {
  const int windows = (slots + kGdnWindowSlots - 1) / kGdnWindowSlots;
  return windows == 0 ? 0 : (slots + windows - 1) / windows;
}

/// Byte offsets in scratch memory, of arrays over the slots of one window.
struct GdnScratch {
  size_t keys = 0;     // [slots, Hk] tiles of 64 x 128 BF16
  size_t queries = 0;  // the same
  size_t values = 0;   // [slots, Hv, 2] tiles of 64 x 64 BF16: halves of the value dims
  size_t systems = 0;  // [slots, Hv, 2] tiles of 64 x 64 BF16: T, then P
  size_t gates = 0;    // [slots, Hv] GdnChunkGates
  size_t bytes = 0;
};

/// Per row of a chunk and value head, with G the running sum of the log decays of the chunk.
struct GdnChunkGates {
  float from_entry[ops::kGdnChunk];  // e^(G_i); the last one is the decay of the whole chunk
  float to_exit[ops::kGdnChunk];     // e^(G_last - G_i)
  float beta[ops::kGdnChunk];
};

inline constexpr size_t kGdnKeyTileBytes = size_t{ops::kGdnChunk} * kGdnDim * sizeof(uint16_t);
inline constexpr size_t kGdnSquareTileBytes =
    size_t{ops::kGdnChunk} * ops::kGdnChunk * sizeof(uint16_t);

constexpr GdnScratch plan_gdn_scratch(const ops::GdnShape& shape, int slots) {
  const size_t key_heads = static_cast<size_t>(slots) * static_cast<size_t>(shape.key_heads);
  const size_t value_heads = static_cast<size_t>(slots) * static_cast<size_t>(shape.value_heads);
  GdnScratch scratch;
  const auto take = [&scratch](size_t bytes) {
    const size_t at = scratch.bytes;
    scratch.bytes += bytes;
    return at;
  };
  scratch.keys = take(key_heads * kGdnKeyTileBytes);
  scratch.queries = take(key_heads * kGdnKeyTileBytes);
  scratch.values = take(value_heads * 2 * kGdnSquareTileBytes);
  scratch.systems = take(value_heads * 2 * kGdnSquareTileBytes);
  scratch.gates = take(value_heads * sizeof(GdnChunkGates));
  return scratch;
}

}  // namespace tessera::cuda
