// SPDX-License-Identifier: Apache-2.0
// Tiles of the chunked form, as they lie in scratch and in shared memory: slabs of 64 dims, their
// rows of 128 bytes with the swizzle of wgmma, so that eight rows of one unit fall into different
// banks. Which chunk a slot holds.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/gdn/gdn_plan.h"

namespace tessera::cuda::device {

/// A tile of kGdnChunk rows of kRowBytes; 128 bytes hold 64 dims, one slab. In shared memory, where
/// wgmma reads it, it starts at a multiple of 1024 bytes.
template <int kRowBytes>
struct GdnTile {
  static constexpr int kUnitBytes = 16;
  static constexpr int kUnitElements = kUnitBytes / 2;
  static constexpr int kUnits = kRowBytes / kUnitBytes;
  static constexpr int kSlabUnits = kSwizzleBytes / kUnitBytes;
  static constexpr int kSlabBytes = ops::kGdnChunk * kSwizzleBytes;
  static constexpr size_t kBytes = size_t{ops::kGdnChunk} * kRowBytes;

  __device__ static int offset(int row, int unit) {
    return unit / kSlabUnits * kSlabBytes + swizzled_offset(row, unit % kSlabUnits);
  }
  /// What this lane gives to a matrix load or store: rows from `row` on, a multiple of 16 (strip:
  /// of 8), units from `unit` on, a multiple of 2 (strip: of 4). `row` and `unit` become immediate
  /// offsets but for the exclusive or, so that few addresses are kept.
  ///
  /// 16 rows x 16 dims as the left operand, or as the right operand of a product over the rows:
  /// then {out[0], out[1]} belong to unit `unit` and {out[2], out[3]} to the next.
  __device__ static const std::byte* square(const std::byte* tile, int row, int unit) {
    const auto lane = static_cast<unsigned>(lane_id());
    return at(tile, row, unit, lane % 16 * kSwizzleBytes, lane / 16 ^ lane % 8);
  }
  /// 8 rows x 32 dims as the right operands of two products over the dims.
  __device__ static const std::byte* strip(const std::byte* tile, int row, int unit) {
    const auto lane = static_cast<unsigned>(lane_id());
    return at(tile, row, unit, lane % 8 * kSwizzleBytes, lane / 8 ^ lane % 8);
  }
  /// 16 rows x 16 dims to be read or written transposed: {out[0], out[1]} are the first eight rows.
  __device__ static std::byte* transposed(std::byte* tile, int row, int unit) {
    const auto lane = static_cast<unsigned>(lane_id());
    const unsigned lane_row = lane / 16 * 8 + lane % 8;
    return const_cast<std::byte*>(
        at(tile, row, unit, lane_row * kSwizzleBytes, lane / 8 % 2 ^ lane % 8));
  }

 private:
  __device__ static const std::byte* at(const std::byte* tile, int row, int unit,
                                        unsigned lane_bytes, unsigned lane_unit) {
    const auto swapped = static_cast<unsigned>(unit % kSlabUnits) * kUnitBytes;
    return tile + unit / kSlabUnits * kSlabBytes + row * kSwizzleBytes +
           ((lane_bytes + lane_unit * kUnitBytes) ^ swapped);
  }
};
using KeyTile = GdnTile<kGdnDim * 2>;
using SquareTile = GdnTile<ops::kGdnChunk * 2>;
static_assert(KeyTile::kBytes == kGdnKeyTileBytes && SquareTile::kBytes == kGdnSquareTileBytes);

/// Scratch memory of one window of slots.
struct GdnWorkspace {
  std::byte* base;
  GdnScratch layout;
  int first_slot;
  int num_slots;
  int key_heads;
  int value_heads;

  __device__ size_t key_index(int slot, int head) const {
    return static_cast<size_t>(slot - first_slot) * static_cast<size_t>(key_heads) +
           static_cast<size_t>(head);
  }
  __device__ size_t value_index(int slot, int head) const {
    return static_cast<size_t>(slot - first_slot) * static_cast<size_t>(value_heads) +
           static_cast<size_t>(head);
  }
  __device__ std::byte* keys(int slot, int head) const {
    return base + layout.keys + key_index(slot, head) * KeyTile::kBytes;
  }
  __device__ std::byte* queries(int slot, int head) const {
    return base + layout.queries + key_index(slot, head) * KeyTile::kBytes;
  }
  __device__ std::byte* values(int slot, int head, int half) const {
    return base + layout.values +
           (2 * value_index(slot, head) + static_cast<size_t>(half)) * SquareTile::kBytes;
  }
  /// T, behind it P.
  __device__ std::byte* systems(int slot, int head) const {
    return base + layout.systems + 2 * value_index(slot, head) * SquareTile::kBytes;
  }
  __device__ GdnChunkGates* gates(int slot, int head) const {
    return reinterpret_cast<GdnChunkGates*>(base + layout.gates) + value_index(slot, head);
  }
};

struct GdnSlotChunk {
  ops::RowSpan span;
  GdnChunkRows at;

  __device__ int launch_row(int row) const { return span.row_begin + at.first + row; }
};

/// The chunk of a slot; at.rows <= 0 when the slot is not used.
__device__ __forceinline__ GdnSlotChunk find_chunk(const Batch& batch, int slot) {
  int low = 0, high = batch.num_spans;
  while (high - low > 1) {  // last span whose first slot is not behind `slot`
    const int middle = (low + high) / 2;
    (gdn_first_slot(batch.spans[middle].row_begin, middle) <= slot ? low : high) = middle;
  }
  GdnSlotChunk chunk{.span = batch.spans[low], .at = {}};
  chunk.at = gdn_chunk_rows(chunk.span.position, chunk.span.num_rows,
                            slot - gdn_first_slot(chunk.span.row_begin, low));
  return chunk;
}

}  // namespace tessera::cuda::device
