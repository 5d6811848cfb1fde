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
/// sixteen of down; `low` and `high` are the first rows of its halves, in expert 0.
struct StreamSegment {
  const std::byte* low = nullptr;
  const std::byte* high = nullptr;
  const float* low_scale = nullptr;  // nullptr: BF16
  const float* high_scale = nullptr;
  ptrdiff_t low_stride = 0;  // from expert to expert, bytes
  ptrdiff_t high_stride = 0;
  ptrdiff_t low_scale_stride = 0;  // floats
  ptrdiff_t high_scale_stride = 0;
  int scale_cols = 0;
  int row_bytes = 0;
  int depth = 0;  // elements of a row
  int step = 0;   // rows of a matrix from tile to tile
  int tiles = 0;  // per expert
  moe::StreamSplit split{};
};

/// In the order of a block's work: the shared expert's weights can be asked for before the routing
/// is known, and all of up comes before down.
enum StreamPhase : int { kSharedUp, kRoutedUp, kSharedDown, kRoutedDown, kStreamPhases };
__device__ __forceinline__ bool is_up(int phase) { return phase < kSharedDown; }
__device__ __forceinline__ bool is_routed(int phase) { return phase % 2 == 1; }

struct StreamArgs {
  StreamSegment segments[kStreamPhases];
  const Bf16* x = nullptr;       // [rows, hidden]
  const int32_t* ids = nullptr;  // [rows, top_k]
  Bf16* inner = nullptr;         // [rows, slots, width] silu(gate) * up
  Bf16* results = nullptr;       // [rows, slots, hidden]
  uint64_t* arrivals = nullptr;  // blocks that are through with up, of all launches
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
  int warp_sums[Geometry::kWarps];
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

/// Groups in the order of their experts. All threads; ends with a barrier.
__device__ inline void group_pairs(StreamTables& tables, StreamSorting& sorting, const int32_t* ids,
                                   int pairs, int top_k) {
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

  /// Tiles of this warp; 0 as well when it belongs to no team.
  __device__ __forceinline__ int own_tiles(const moe::StreamSplit& split) const {
    const int team = warp_id() / split.per_team;
    return team < split.teams ? (tiles - team + split.teams - 1) / split.teams : 0;
  }
};

/// Slices of K of this warp.
__device__ __forceinline__ int own_slices(const moe::StreamSplit& split) {
  return (split.slices - warp_id() % split.per_team + split.per_team - 1) / split.per_team;
}

/// Goes through a block's panels in order.
class StreamWalk {
 public:
  /// False when there is none before phase `end_phase`; later calls may look further.
  __device__ __forceinline__ bool next(const StreamArgs& args, const StreamTables& tables,
                                       int end_phase, StreamPanel& panel) {
    while (phase_ < end_phase) {
      const int place = tables.begins[phase_] + done_;
      const StreamSegment& segment = args.segments[phase_];
      const int left = tables.ends[phase_] - place;
      if (left > 0) {
        panel.phase = phase_;
        panel.group = place / segment.tiles;
        panel.tile = place % segment.tiles;
        panel.tiles = min(min(left, segment.tiles - panel.tile),
                          moe::StreamGeometry::kTiles * segment.split.teams);
        done_ += panel.tiles;
        return true;
      }
      ++phase_;
      done_ = 0;
    }
    return false;
  }

 private:
  int phase_ = 0;
  int done_ = 0;  // tiles of the phase
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
