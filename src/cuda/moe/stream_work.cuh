// SPDX-License-Identifier: Apache-2.0
// Who does what in the streaming expert kernel: rows are grouped by expert inside every block, and
// each block takes an equal share of the weights, so that the grid does not depend on the routing.
#pragma once

#include <cstdint>

#include "cuda/device/bf16.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/moe/block_scan.cuh"
#include "cuda/moe/moe_plan.h"

namespace tessera::cuda::device {

/// One product of one kind of expert. A tile is 16 weight rows: eight of gate over eight of up, or
/// sixteen of down; its halves are `low` and `high`. The weights come through maps.
struct StreamSegment {
  const float* low_scale = nullptr;  // of expert 0; nullptr: BF16
  const float* high_scale = nullptr;
  ptrdiff_t low_scale_stride = 0;  // from expert to expert, floats
  ptrdiff_t high_scale_stride = 0;
  int scale_cols = 0;
  int row_bytes = 0;  // of the weights
  int depth = 0;      // elements of a row
  int step = 0;       // rows of a matrix from tile to tile
  int high_row = 0;   // of a tile's high half behind its low one, in the matrix of the high map
  int tiles = 0;      // per expert
  moe::StreamSplit split{};
};

/// In the order of a block's work: the shared expert's weights can be asked for before the routing
/// is known, and all of up comes before down.
enum StreamPhase : int { kSharedUp, kRoutedUp, kSharedDown, kRoutedDown, kStreamPhases };
__device__ __forceinline__ bool is_up(int phase) { return phase < kSharedDown; }
__device__ __forceinline__ bool is_routed(int phase) { return phase % 2 == 1; }

struct StreamArgs {
  StreamSegment segments[kStreamPhases];
  const std::byte* shared_down = nullptr;  // the shared expert's down matrix
  const Bf16* x = nullptr;                 // [rows, hidden]
  const int32_t* ids = nullptr;            // [rows, top_k]
  Bf16* inner = nullptr;                   // [rows, slots, width] silu(gate) * up
  Bf16* results = nullptr;                 // [rows, slots, hidden]
  uint64_t* arrivals = nullptr;            // blocks that are through with up, of all launches
  int rows = 0;
  int top_k = 0;
};

/// Where a row of a group comes from and where its results go.
struct StreamColumn {
  int row = 0;
  int entry = 0;
};

/// Tables of one block. A group is up to kColumns pairs (row, slot) of one expert.
struct StreamTables {
  using Geometry = moe::StreamGeometry;
  uint32_t groups[Geometry::kMostPairs];   // expert | first column << 10 | (columns - 1) << 22
  uint32_t columns[Geometry::kMostPairs];  // row | entry << 16, by expert and row
  int begins[kStreamPhases];               // of this block's tiles, counted over all groups
  int ends[kStreamPhases];
  int num_groups;
};
/// Needed only while the tables are made.
struct StreamSorting {
  using Geometry = moe::StreamGeometry;
  uint32_t pairs[Geometry::kMostPairs];  // expert | rank within the expert << 16
  int counts[Geometry::kMostExperts];    // pairs of each expert, then its first column
  int warp_sums[Geometry::kThreads / kWarp];
};

/// Before wait_for_inputs().
__device__ __forceinline__ void clear_counts(StreamSorting& sorting) {
  for (int expert = static_cast<int>(threadIdx.x); expert < moe::StreamGeometry::kMostExperts;
       expert += moe::StreamGeometry::kThreads)
    sorting.counts[expert] = 0;
}

/// Rank of every pair among those of its expert, in the order of the pairs: all blocks agree. One
/// warp.
__device__ inline void rank_pairs(StreamSorting& sorting, int pairs) {
  for (int first = 0; first < pairs; first += kWarp) {
    const int pair = first + lane_id();
    const bool valid = pair < pairs;
    const uint32_t mask = __ballot_sync(kAllLanes, valid);
    if (valid) {
      const uint32_t expert = sorting.pairs[pair];
      const uint32_t same = __match_any_sync(mask, expert);
      const int before = sorting.counts[expert];
      const int rank = before + __popc(same & ((1U << lane_id()) - 1));
      sorting.pairs[pair] = expert | static_cast<uint32_t>(rank) << 16;
      __syncwarp(mask);  // every lane has read the counts
      if (same >> lane_id() == 1) sorting.counts[expert] = rank + 1;  // the last lane of each kind
    }
    __syncwarp();  // the counts are up to date
  }
}

/// group_pairs for at most a pair per lane, so few that an expert's fit into one group. One warp.
__device__ inline void group_few_pairs(StreamTables& tables, const int32_t* ids, int pairs,
                                       int top_k) {
  const int lane = lane_id();
  const bool valid = lane < pairs;
  const int expert = valid ? __ldcg(ids + lane) : moe::StreamGeometry::kMostExperts + lane;
  const uint32_t same = __match_any_sync(kAllLanes, expert);
  const int rank = __popc(same & ((1U << lane) - 1));
  int before = rank, groups_before = 0;  // pairs of lower experts, and of this one in lower lanes
  for (int other = 0; other < pairs; ++other) {
    const int other_expert = __shfl_sync(kAllLanes, expert, other);
    const bool leads = __shfl_sync(kAllLanes, rank, other) == 0;
    before += other_expert < expert ? 1 : 0;
    groups_before += leads && other_expert < expert ? 1 : 0;
  }
  if (valid) {
    const int row = lane / top_k;
    tables.columns[before] = static_cast<uint32_t>(row | (lane + row) << 16);
    if (rank == 0)
      tables.groups[groups_before] =
          static_cast<uint32_t>(expert | before << 10 | (__popc(same) - 1) << 22);
  }
  const uint32_t leaders = __ballot_sync(kAllLanes, valid && rank == 0);
  if (lane == 0) tables.num_groups = __popc(leaders);
}

/// Groups in the order of their experts. All threads; ends with a barrier.
__device__ inline void group_pairs(StreamTables& tables, StreamSorting& sorting, const int32_t* ids,
                                   int pairs, int top_k) {
  if (pairs <= kWarp && pairs <= moe::StreamGeometry::kColumns * top_k) {
    if (warp_id() == 0) group_few_pairs(tables, ids, pairs, top_k);
    __syncthreads();  // the tables are complete
    return;
  }
  using Geometry = moe::StreamGeometry;
  constexpr int kPerThread = (Geometry::kMostExperts + Geometry::kThreads - 1) / Geometry::kThreads;
  const auto thread = static_cast<int>(threadIdx.x);
  for (int pair = thread; pair < pairs; pair += Geometry::kThreads)
    sorting.pairs[pair] = static_cast<uint32_t>(__ldcg(ids + pair));
  __syncthreads();  // counts are zero, experts are there
  if (warp_id() == 0) rank_pairs(sorting, pairs);
  __syncthreads();  // ranks and counts are complete
  const int first_expert = thread * kPerThread;
  const int end_expert = min(first_expert + kPerThread, Geometry::kMostExperts);
  const auto groups_of = [](int count) {
    return (count + Geometry::kColumns - 1) / Geometry::kColumns;
  };
  int own = 0;  // pairs, and groups from bit 16 on
  for (int expert = first_expert; expert < end_expert; ++expert)
    own += sorting.counts[expert] | groups_of(sorting.counts[expert]) << 16;
  const int before = exclusive_sum<Geometry::kThreads>(own, sorting.warp_sums);
  int column = before & 0xFFFF, group = before >> 16;
  for (int expert = first_expert; expert < end_expert; ++expert) {
    const int count = sorting.counts[expert];
    sorting.counts[expert] = column;
    for (int done = 0; done < count; done += Geometry::kColumns)
      tables.groups[group++] = static_cast<uint32_t>(
          expert | (column + done) << 10 | (min(count - done, Geometry::kColumns) - 1) << 22);
    column += count;
  }
  if (thread == Geometry::kThreads - 1) tables.num_groups = group;
  __syncthreads();  // every expert's first column is there
  for (int pair = thread; pair < pairs; pair += Geometry::kThreads) {
    const uint32_t packed = sorting.pairs[pair];
    const int place = sorting.counts[packed & 0xFFFFU] + static_cast<int>(packed >> 16);
    const int row = pair / top_k;
    tables.columns[place] = static_cast<uint32_t>(row | (pair + row) << 16);
  }
  __syncthreads();  // the tables are complete, nobody needs `sorting` any more
}

/// Neighbouring tiles of one group whose sums a block keeps at once.
struct StreamPanel {
  int phase = 0;
  int group = 0;  // shared expert: kColumns rows from group * kColumns on
  int tile = 0;   // first tile, within the expert
  int tiles = 0;
  int end = -1;  // the tile behind it, counted like the block's ranges; -1: none of the phase yet

  /// Was the block's panel before it of the same group?
  __device__ __forceinline__ bool continues(const StreamTables& tables) const {
    return tile > 0 && end - tiles > tables.begins[phase];
  }

  /// Goes on to the block's next panel. False when there is none before phase `end_phase`; later
  /// calls may look further.
  __device__ __forceinline__ bool next(const StreamArgs& args, const StreamTables& tables,
                                       int end_phase) {
    for (; phase < end_phase; ++phase, end = -1) {
      const int place = end < 0 ? tables.begins[phase] : end;
      const int left = tables.ends[phase] - place;
      if (left <= 0) continue;
      const StreamSegment& segment = args.segments[phase];
      group = place / segment.tiles;
      tile = place % segment.tiles;
      tiles =
          min(min(left, segment.tiles - tile), moe::StreamGeometry::kTiles * segment.split.teams());
      end = place + tiles;
      return true;
    }
    tiles = 0;
    return false;
  }
};

/// Routed panels: the expert; shared ones: 0.
__device__ __forceinline__ int expert_of(const StreamTables& tables, const StreamPanel& panel) {
  return is_routed(panel.phase) ? static_cast<int>(tables.groups[panel.group] & 0x3FFU) : 0;
}
__device__ __forceinline__ int columns_of(const StreamArgs& args, const StreamTables& tables,
                                          const StreamPanel& panel) {
  constexpr int kColumns = moe::StreamGeometry::kColumns;
  return is_routed(panel.phase) ? static_cast<int>(tables.groups[panel.group] >> 22) + 1
                                : min(args.rows - panel.group * kColumns, kColumns);
}
__device__ __forceinline__ StreamColumn column_of(const StreamArgs& args,
                                                  const StreamTables& tables,
                                                  const StreamPanel& panel, int column) {
  if (!is_routed(panel.phase)) {
    const int row = panel.group * moe::StreamGeometry::kColumns + column;
    return {row, row * (args.top_k + 1) + args.top_k};
  }
  const int first = static_cast<int>(tables.groups[panel.group] >> 10 & 0xFFFU);
  const uint32_t packed = tables.columns[first + column];
  return {static_cast<int>(packed & 0xFFFFU), static_cast<int>(packed >> 16)};
}

}  // namespace tessera::cuda::device
