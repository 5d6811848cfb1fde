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
inline constexpr int kAttendTileBlocks = 16;
inline constexpr int kAttendParts = 4;

/// Loads that a lane has under way, as registers allow: vectors of each of its key tokens, and
/// steps over 16 tokens of values.
inline constexpr int kSpreadKeysAhead = 8, kSpreadValuesAhead = 4;
inline constexpr int kAttendKeysAhead = 3, kAttendValuesAhead = 1;

/// Of the memory that a processor splits into shared memory and first-level cache: 64 KiB of 228.
inline constexpr int kAttendSharedPercent = 28;

/// One way to spread the work. Teams of warps run tiles of one row; a thread block has the teams of
/// up to `rows` neighbouring rows of a sequence, which meet in its first-level cache.
struct AttendTile {
  int rows = 0;
  int row_teams = 0;   // of each row in a thread block
  int team_warps = 0;  // 4 for latency, 2 to share more of what a warp loads
  int splits = 0;      // thread blocks of a cluster

  /// Teams of a row in the cluster. Each runs one tile, or one part.
  constexpr int ranks() const { return row_teams * splits; }
  constexpr bool one_tile() const { return ranks() > kAttendParts; }
};

/// Few rows are spread over many thread blocks, many rows share what they load, many sequences of
/// one row each fill the device alone.
inline constexpr std::array kAttendTiles = {
    AttendTile{.rows = 1, .row_teams = 2, .team_warps = 4, .splits = 16},
    AttendTile{.rows = 4, .row_teams = 1, .team_warps = 2, .splits = 4},
    AttendTile{.rows = 1, .row_teams = 4, .team_warps = 2, .splits = 1}};
inline constexpr int kSpreadTile = 0, kSharedTile = 1, kSingleRowTile = 2;

/// How the tiles of a list are cut.
struct AttendSplit {
  int num_tiles = 0;
  int tiles_per_part = 0;
  int tiles_per_rank = 0;  // of one team
};

constexpr int attend_tiles(int budget_blocks) {
  return std::max(1, (budget_blocks + kAttendTileBlocks - 1) / kAttendTileBlocks);
}

constexpr AttendSplit split_attend(int budget_blocks, const AttendTile& tile) {
  const int tiles = attend_tiles(budget_blocks);
  const int per_part = (tiles + kAttendParts - 1) / kAttendParts;
  return {tiles, per_part, tile.one_tile() ? 1 : per_part};
}

/// Row groups of at most `rows` rows, an upper limit from counts alone: the lengths of the spans
/// may change when a recorded launch is repeated.
constexpr int max_attend_groups(int num_spans, int num_rows, int rows) {
  return num_spans + (num_rows - num_spans) / rows;
}

/// Index into kAttendTiles. `fits_spread`: clusters of kSpreadTile that the device runs at the same
/// time.
constexpr int plan_attend(ops::Role role, int num_spans, int num_rows, int kv_heads,
                          int budget_blocks, int fits_spread) {
  constexpr int kSpreadWaves = 4;  // of single rows: more of them fill the device without clusters
  if (role == ops::Role::kPrefill) return kSharedTile;
  const bool spreads = attend_tiles(budget_blocks) <= kAttendTiles[kSpreadTile].ranks();
  const int clusters = num_rows * kv_heads;
  if (spreads && clusters <= fits_spread) return kSpreadTile;
  if (num_rows >= 2 * num_spans) return kSharedTile;
  return spreads && clusters < kSpreadWaves * fits_spread ? kSpreadTile : kSingleRowTile;
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
