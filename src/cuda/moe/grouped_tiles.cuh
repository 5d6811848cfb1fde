// SPDX-License-Identifier: Apache-2.0
// Tiles of the grouped products: which expert, which of its weights and which of its rows.
#pragma once

#include <cstdint>

#include "cuda/moe/moe_plan.h"

namespace tessera::cuda::device {

/// Written by the sort; groups [first, last) belong to the launch. Group 0 is the shared expert.
struct GroupTables {
  const int32_t* begins = nullptr;       // [groups] first entry
  const int32_t* counts = nullptr;       // [groups]
  const int32_t* tile_begins = nullptr;  // [groups + 1] token tiles of the groups before
  int32_t* taken = nullptr;              // tiles taken after every block's first one
  int first = 0;
  int last = 0;
  int weight_tiles = 0;  // tiles that cover the weight rows of an expert
};

/// 16 bytes: one load.
struct alignas(16) GroupTile {
  int expert = 0;       // -1: the shared one
  int weight_tile = 0;  // of the expert's weight rows
  int first_entry = 0;
  int tokens = 0;
};

/// The tables in shared memory. Token tiles of a weight tile are neighbours.
struct GroupIndex {
  int begins[moe::kGroupedExperts + 1];
  int counts[moe::kGroupedExperts + 1];
  int tile_begins[moe::kGroupedExperts + 2];

  /// All threads; a barrier must follow.
  __device__ __forceinline__ void load(const GroupTables& tables) {
    for (int group = tables.first + static_cast<int>(threadIdx.x); group <= tables.last;
         group += static_cast<int>(blockDim.x)) {
      tile_begins[group] = tables.tile_begins[group];
      if (group == tables.last) continue;
      begins[group] = tables.begins[group];
      counts[group] = tables.counts[group];
    }
  }

  __device__ __forceinline__ int tiles(const GroupTables& tables) const {
    return (tile_begins[tables.last] - tile_begins[tables.first]) * tables.weight_tiles;
  }

  __device__ __forceinline__ GroupTile locate(const GroupTables& tables, int index) const {
    const int target = index / tables.weight_tiles + tile_begins[tables.first];
    int low = tables.first, high = tables.last;  // the last group that begins at or before target
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (tile_begins[middle] <= target)
        low = middle;
      else
        high = middle;
    }
    const int token_tiles = tile_begins[low + 1] - tile_begins[low];
    const int local = index - (tile_begins[low] - tile_begins[tables.first]) * tables.weight_tiles;
    const int token_tile = local % token_tiles;
    const int per_tile = moe::tile_tokens(counts[low], token_tiles);
    const int begin = token_tile * per_tile;
    return {.expert = low - 1,
            .weight_tile = local / token_tiles,
            .first_entry = begins[low] + begin,
            .tokens = min(per_tile, counts[low] - begin)};
  }
};

}  // namespace tessera::cuda::device
