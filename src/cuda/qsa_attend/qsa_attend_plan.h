// SPDX-License-Identifier: Apache-2.0
// Which kernel attends and how its work is cut: plain numbers, tested without a device.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cuda/gpu_spec.h"
#include "ops/qsa.h"

namespace tessera::cuda {

/// Geometry of the tensor-core kernels.
struct FastAttendShape {
  static constexpr int kGroup = 12;  // query heads of a K/V head
  static constexpr int kHeadDim = 256;
  static constexpr int kBlock = 4;  // tokens
};

/// A row's list is cut into tiles of this many blocks, each with a softmax of its own; the open
/// tail belongs to the last tile. Tiles are folded in ascending order into kAttendParts parts of
/// equal length, and these in ascending order into the result. So a row's bits follow from the
/// geometry and its own list, however tiles and rows are spread over thread blocks.
inline constexpr int kAttendTileBlocks = 32;
inline constexpr int kAttendParts = 4;

/// One way to spread the work: a thread block runs up to `rows` neighbouring rows of a sequence,
/// which share what they load, and 1 of `splits` shares of their tiles.
struct AttendTile {
  int rows = 0;
  int splits = 0;     // thread blocks of a cluster
  int row_warps = 0;  // that compute one row: 4 for latency, 2 where registers are scarce
  int producer_warps = 0;
  int slots = 0;  // blocks of K or V that shared memory holds

  /// Every split is a part or lies in one.
  constexpr bool follows_parts() const { return splits >= kAttendParts; }
};

/// Decode: few rows are spread over many thread blocks, many rows share loads. Prefill: one split,
/// because its launches fill the device and its bits need not match those of decoding.
inline constexpr std::array kAttendTiles = {
    AttendTile{.rows = 1, .splits = 16, .row_warps = 4, .producer_warps = 4, .slots = 66},
    AttendTile{.rows = 4, .splits = 16, .row_warps = 2, .producer_warps = 4, .slots = 88},
    AttendTile{.rows = 4, .splits = 4, .row_warps = 2, .producer_warps = 4, .slots = 88},
    AttendTile{.rows = 4, .splits = 1, .row_warps = 2, .producer_warps = 4, .slots = 88}};
inline constexpr int kSingleRowTile = 0, kWideTile = 1, kSharedTile = 2, kPrefillTile = 3;

/// How the tiles of a list are cut.
struct AttendSplit {
  int num_tiles = 0;
  int tiles_per_part = 0;
  int tiles_per_block = 0;  // of one thread block
};

constexpr int attend_tiles(int budget_blocks) {
  return std::max(1, (budget_blocks + kAttendTileBlocks - 1) / kAttendTileBlocks);
}

constexpr AttendSplit split_attend(int budget_blocks, int splits) {
  const int tiles = attend_tiles(budget_blocks);
  const int per_part = (tiles + kAttendParts - 1) / kAttendParts;
  if (splits == 1) return {tiles, tiles, tiles};
  if (splits == kAttendParts) return {tiles, per_part, per_part};
  return {tiles, per_part, 1};
}

/// Row groups of at most `rows` rows, an upper limit from counts alone: the lengths of the spans
/// may change when a recorded launch is repeated.
constexpr int max_attend_groups(int num_spans, int num_rows, int rows) {
  return num_spans + (num_rows - num_spans) / rows;
}

/// Index into kAttendTiles. `fits_single` and `fits_wide`: clusters of kSingleRowTile and kWideTile
/// that the device runs at the same time.
constexpr int plan_attend(ops::Role role, int num_spans, int num_rows, int kv_heads,
                          int budget_blocks, int fits_single, int fits_wide) {
  if (role == ops::Role::kPrefill) return kPrefillTile;
  const int tiles = attend_tiles(budget_blocks);
  if (tiles <= kAttendParts || tiles > kAttendTiles[kWideTile].splits) return kSharedTile;
  if (num_rows * kv_heads <= fits_single) return kSingleRowTile;
  const int groups = max_attend_groups(num_spans, num_rows, kAttendTiles[kWideTile].rows);
  return groups * kv_heads <= fits_wide ? kWideTile : kSharedTile;
}

/// The prompt kernel: queries whose positions share position / kQueries run over the union of their
/// blocks. The groups follow from absolute positions, so they are the same in every launch whose
/// chunks are cut on the 64-token grid.
struct UnionPlan {
  static constexpr int kQueries = 8;
  static constexpr int kMaxBlocks = 131072;  // of a sequence: what the map in shared memory holds
  static constexpr int kMaxBudget = 512;     // blocks of a query
  static constexpr int kListEntries = kQueries * (kMaxBudget + 1) + 8;  // whole tiles of 16

  static constexpr int groups(int64_t position, int num_rows) {
    if (num_rows == 0) return 0;
    return static_cast<int>((position + num_rows - 1) / kQueries - position / kQueries) + 1;
  }
};
static_assert(UnionPlan::kListEntries % 16 == 0);

/// Empty when the prompt kernel takes a launch that the tensor-core kernels take.
inline std::string_view supports_union_attend(const ops::QsaAttendArgs& args) {
  if (args.batch.role != ops::Role::kPrefill) return "decode rows must not share softmax tiles";
  if (args.cache.keys.dtype != DType::kBF16) return "K and V are not BF16";
  if (args.budget_blocks > UnionPlan::kMaxBudget) return "more than 512 blocks per query";
  for (const ops::RowSpan& span : args.batch.spans)
    if (span.position + span.num_rows >= int64_t{UnionPlan::kMaxBlocks} * args.shape.block)
      return "a sequence has more than 524288 tokens";
  return {};
}

/// Empty when the tensor-core kernels take these arguments, else the reason why not.
inline std::string_view supports_fast_attend(const ops::QsaShape& shape, const ops::QsaCache& cache,
                                             const GpuSpec& gpu) {
  constexpr size_t kVector = 16;
  const auto aligned = [](const ops::PageRef& ref) {
    return reinterpret_cast<uintptr_t>(ref.pool) % kVector == 0 && ref.page_stride % kVector == 0 &&
           ref.offset % kVector == 0;
  };
  if (!gpu.is_hopper()) return "the device is not of compute capability 9.x";
  if (shape.head_dim != FastAttendShape::kHeadDim) return "head dim is not 256";
  if (shape.block != FastAttendShape::kBlock) return "blocks are not of 4 tokens";
  if (shape.heads != FastAttendShape::kGroup * shape.kv_heads)
    return "a K/V head does not serve 12 query heads";
  if (cache.keys.dtype != cache.values.dtype) return "K and V differ in type";
  if (cache.keys.dtype != DType::kBF16 && cache.keys.dtype != DType::kF8E4M3)
    return "K and V are neither BF16 nor E4M3";
  if (!aligned(cache.keys) || !aligned(cache.values)) return "cache pages are not 16-byte aligned";
  return {};
}

}  // namespace tessera::cuda
