// SPDX-License-Identifier: Apache-2.0
// Who does what in the streaming expert kernels: rows are grouped by expert inside every block, and
// each block takes an equal share of the weights, so that the grid does not depend on the routing.
#pragma once

#include <cstdint>

#include "cuda/device/reduce.cuh"
#include "cuda/moe/block_scan.cuh"
#include "cuda/moe/moe_plan.h"

namespace tessera::cuda::device {

/// Tables of one block in shared memory. A tile is up to kStreamRows pairs (row, slot) of one
/// expert.
struct StreamTables {
  uint32_t tiles[moe::kStreamPairs];      // expert | (tile within the expert) << 16
  uint16_t expert_of[moe::kStreamPairs];  // of each pair, in row order
  int counts[moe::kStreamExperts];        // pairs of each expert
  int warp_tiles[moe::kStreamWarps];
  int num_tiles;
};

/// Before wait_for_inputs().
__device__ __forceinline__ void clear_counts(StreamTables& tables) {
  for (int expert = static_cast<int>(threadIdx.x); expert < moe::kStreamExperts;
       expert += moe::kStreamThreads)
    tables.counts[expert] = 0;
}

/// Tiles in the order of their experts. All threads; ends with a barrier.
__device__ inline void group_pairs(StreamTables& tables, const int32_t* ids, int pairs) {
  const auto thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // counts are zero
  for (int pair = thread; pair < pairs; pair += moe::kStreamThreads) {
    const int expert = __ldcg(ids + pair);
    tables.expert_of[pair] = static_cast<uint16_t>(expert);
    atomicAdd(&tables.counts[expert], 1);
  }
  __syncthreads();  // counts are complete
  constexpr int kPerThread = moe::kStreamExperts / moe::kStreamThreads;
  const auto tiles_of = [&tables](int expert) {
    return (tables.counts[expert] + moe::kStreamRows - 1) / moe::kStreamRows;
  };
  int own = 0;
  for (int step = 0; step < kPerThread; ++step) own += tiles_of(thread * kPerThread + step);
  int place = exclusive_sum<moe::kStreamThreads>(own, tables.warp_tiles);
  for (int step = 0; step < kPerThread; ++step) {
    const int expert = thread * kPerThread + step;
    for (int tile = 0; tile < tiles_of(expert); ++tile)
      tables.tiles[place++] = static_cast<uint32_t>(expert) | static_cast<uint32_t>(tile) << 16;
  }
  if (thread == moe::kStreamThreads - 1) tables.num_tiles = place;
  __syncthreads();  // tiles are complete
}

/// Pair number `rank` (from 0) of an expert in row order; -1 when it has fewer. One warp.
__device__ __forceinline__ int find_pair(const StreamTables& tables, int pairs, int expert,
                                         int rank) {
  int found = -1;
  for (int first = 0; first < pairs && found < 0; first += kWarp) {
    const int pair = first + lane_id();
    const bool match = pair < pairs && tables.expert_of[pair] == expert;
    const uint32_t matches = __ballot_sync(kAllLanes, match);
    const int count = __popc(matches);
    if (rank < count) found = first + static_cast<int>(__fns(matches, 0, rank + 1));
    rank -= count;
  }
  return found;
}

}  // namespace tessera::cuda::device
