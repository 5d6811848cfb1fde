// SPDX-License-Identifier: Apache-2.0
// The compile-time config of the tile kernel, its map of shared memory and the rows of a block.
#pragma once

#include <math_constants.h>

#include <type_traits>

#include "cuda/device/batch.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/qsa_attend/attend_elements.cuh"
#include "cuda/qsa_attend/qsa_attend_plan.h"

namespace tessera::cuda::device {

template <class Cache, size_t kIndex>
struct AttendConfig {
  using Elements = Cache;
  static constexpr AttendTile kTile = kAttendTiles[kIndex];
  static constexpr int kRows = kTile.rows;
  static constexpr int kRowTeams = kTile.row_teams;
  static constexpr int kSplits = kTile.splits;
  static constexpr int kRanks = kTile.ranks();
  static constexpr bool kOneTile = kTile.one_tile();
  static constexpr int kPartRanks = kRanks / kAttendParts;  // at most

  static constexpr int kTeamWarps = kTile.team_warps;
  static constexpr int kTeamThreads = kTeamWarps * kWarp;
  static constexpr int kTeams = kRows * kRowTeams;
  static constexpr int kThreads = kTeams * kTeamThreads;

  static constexpr int kGroup = FastAttendShape::kGroup;
  static constexpr int kDim = FastAttendShape::kHeadDim;
  static constexpr int kBlock = FastAttendShape::kBlock;
  static constexpr int kPageBlocks = ops::kPageTokens / kBlock;
  static constexpr float kRootDim = 16;
  static_assert(kRootDim * kRootDim == kDim);
  static constexpr float kLogitScale = CUDART_L2E_F / kRootDim;  // logits in base-2 units
  static constexpr int kTokenBytes = kDim * static_cast<int>(sizeof(typename Cache::Element));
  static constexpr int kBlockBytes = kBlock * kTokenBytes;
  static constexpr int kHeadBytes = ops::kPageTokens * kTokenBytes;  // of a page
};

/// Heads of an MMA tile: 12 and four that compute copies of the last one.
inline constexpr int kMmaRows = 16;
/// The weights of a tile are summed in this many equal parts of its entries, and these in order.
inline constexpr int kSumParts = 4;

/// What a team knows of its row and needs seldom: kept out of registers.
struct AttendTask {
  int row = 0;
  int sharing = 0;  // the row before runs beside this one
  const int32_t* pages = nullptr;
  uint32_t tail_place = 0;
  int tail_tokens = 0;  // 0: the team has no open tail
};

/// What a team of four warps shares, and where it leaves its sums for the other teams of its row.
template <class Config>
struct AttendTeamShared {
  static constexpr int kQueryBytes =
      Config::kDim * static_cast<int>(sizeof(uint16_t)) + Config::Elements::kQueryPad;
  static constexpr int kTailToken = kAttendTileBlocks * Config::kBlock;  // first of the open tail
  // Rows start an odd number of 16-byte vectors apart, so that ldmatrix meets no conflict.
  static constexpr int kWeightStride = kTailToken + kAttendChunk + kVectorBf16;
  static constexpr int kSumStride = Config::kDim + 4;
  static constexpr int kSumHeads = Config::kOneTile ? 1 : Config::kGroup;  // pushed otherwise
  static constexpr int kListEntries = (Config::kOneTile ? 1 : 8) * kAttendTileBlocks;

  union {
    struct {
      alignas(16) std::byte query[Config::kGroup][kQueryBytes];
      alignas(16) uint16_t weights[Config::kGroup][kWeightStride];
    };
    alignas(16) float sums[kSumHeads][kSumStride];  // after the last tile
  };
  float4 partial[Config::kGroup];  // peak, sum of weights
  float peak[Config::kTeamWarps][kMmaRows];
  float weight_sum[kSumParts][kMmaRows];
  AttendTask task;
  int count;                     // of the row's list
  uint32_t place[kListEntries];  // page id times the blocks of a page plus the block in the page
  int before[kListEntries];      // list of the row before
  uint32_t
      marks[(kListEntries + kWarp - 1) / kWarp];  // a bit per entry: the row before has the block
};

/// What the teams of a row push to a block when each runs one tile: the block's dims of all heads.
template <class Config>
struct AttendInbox {
  static constexpr int kDims = Config::kDim / Config::kSplits;

  alignas(16) float sums[Config::kRanks][Config::kGroup][kDims];
  float2 partial[Config::kRanks][Config::kGroup];
  uint64_t full;

  static constexpr uint32_t kBytes = sizeof(sums) + sizeof(partial);
};
struct NoAttendInbox {};

/// Neighbouring rows of one sequence.
struct AttendRows {
  int first = 0;         // row of the launch
  int count = 0;         // 0: nothing to do
  int64_t position = 0;  // of the first one
  const int32_t* pages = nullptr;
};

template <class Config>
struct AttendShared {
  AttendTeamShared<Config> team[Config::kTeams];
  int kv_head, first_row, num_rows;  // of the block, for its last step
  std::conditional_t<Config::kOneTile, AttendInbox<Config>, NoAttendInbox> inbox;
};

/// Group `index` of the launch: every span gives ceil(rows / kMost) groups of nearly equal size.
/// Whole warps call this. A warp reads 32 spans at once, all they hold in one trip to memory.
template <int kMost>
__device__ AttendRows find_rows(const Batch& batch, int index) {
  if (kMost == 1 && batch.num_spans > kWarp) {
    if (index >= batch.num_rows) return {};
    const ops::RowSpan& span = batch.spans[batch.row_span[index]];
    return {index, 1, span.position + (index - span.row_begin), span.pages};
  }
  int before = 0;
  for (int first = 0; first < batch.num_spans; first += kWarp) {
    const int mine = first + lane_id();
    const ops::RowSpan& span = batch.spans[min(mine, batch.num_spans - 1)];
    const int rows = mine < batch.num_spans ? span.num_rows : 0;
    const int row_begin = span.row_begin;
    const int64_t position = span.position;
    const auto pages = reinterpret_cast<uint64_t>(span.pages);
    const int groups = (rows + kMost - 1) / kMost;
    int end = groups;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, end, step);
      if (lane_id() >= step) end += other;
    }
    end += before;
    const uint32_t past = __ballot_sync(kAllLanes, index < end);
    if (past == 0) {
      before = __shfl_sync(kAllLanes, end, kWarp - 1);
      continue;
    }
    const int owner = __ffs(static_cast<int>(past)) - 1;
    const int part = index - __shfl_sync(kAllLanes, end - groups, owner);
    const int num_groups = __shfl_sync(kAllLanes, groups, owner);
    const int num_rows = __shfl_sync(kAllLanes, rows, owner);
    const int begin = part * num_rows / num_groups;
    const int count = (part + 1) * num_rows / num_groups - begin;
    return {__shfl_sync(kAllLanes, row_begin, owner) + begin, count,
            __shfl_sync(kAllLanes, position, owner) + begin,
            reinterpret_cast<const int32_t*>(__shfl_sync(kAllLanes, pages, owner))};
  }
  return {};
}

}  // namespace tessera::cuda::device
