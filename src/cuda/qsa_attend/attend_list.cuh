// SPDX-License-Identifier: Apache-2.0
// Where the blocks of a row's list lie. A team finds the places of some tiles at once and keeps
// them in shared memory; blocks of later tiles are asked into the second-level cache.
#pragma once

#include "cuda/device/gather.cuh"
#include "cuda/qsa_attend/attend_tile_config.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <class Config>
class AttendList {
 public:
  using Shared = AttendTeamShared<Config>;
  static constexpr int kTiles = Shared::kListEntries / kAttendTileBlocks;  // staged at once

  __device__ AttendList(Shared& shared, const ops::QsaAttendArgs& args, int kv_head)
      : shared_(shared), args_(args), head_bytes_(kv_head * Config::kHeadBytes) {}

  static constexpr int kEntries = Shared::kListEntries;
  /// A team thread's entries of the staged tiles, in the row's list and in that of the row before.
  static constexpr int kShare = (kEntries + Config::kTeamThreads - 1) / Config::kTeamThreads;
  struct Entries {
    int block[kShare]{}, before[kShare]{};
    int count = 0;  // of the row's whole list
  };
  /// Asks for the list of `row` from `tile` on. `sharing`: the row before it runs beside this one.
  /// Entries are read whether or not the row's count reaches so far, so that the loads overlap.
  __device__ Entries start(int row, bool sharing, int tile) {
    Entries found = load(row, sharing, tile);
    found.count = args_.counts[row];
    return found;
  }
  __device__ Entries load(int row, bool sharing, int tile) {
    first_tile_ = tile;
    const auto budget = static_cast<size_t>(args_.budget_blocks);
    Entries found;
#pragma unroll
    for (int share = 0; share < kShare; ++share) {
      if (!exists(share)) continue;
      const int32_t* entry = args_.blocks + static_cast<size_t>(row) * budget +
                             tile * kAttendTileBlocks + local(share);
      found.block[share] = entry[0];
      if (Config::kRows > 1 && sharing) found.before[share] = (entry - budget)[0];
    }
    return found;
  }
  /// Shares the places of what `load` gave; a barrier of the team must follow.
  __device__ void stage(const Entries& found, const int32_t* pages) const {
    if (thread() == 0) shared_.count = found.count;
#pragma unroll
    for (int share = 0; share < kShare; ++share) {
      if (!exists(share)) continue;
      if constexpr (Config::kRows > 1) shared_.before[local(share)] = found.before[share];
      if (first_tile_ * kAttendTileBlocks + local(share) < found.count)
        shared_.place[local(share)] = place_of(pages, found.block[share]);
    }
  }
  /// Marks the blocks that the row before has too: its team asks for them. After stage and its
  /// barrier; another one must follow before prefetch.
  __device__ void mark_shared(const Entries& found, int row, bool sharing) const {
    if constexpr (Config::kRows > 1) {
      int listed = 0;
      if (sharing) listed = args_.counts[row - 1] - first_tile_ * kAttendTileBlocks;
      listed = min(listed, kEntries);
#pragma unroll
      for (int share = 0; share < kShare; ++share) {
        int at = 0;
#pragma unroll
        for (int step = kEntries / 2; step > 0; step /= 2)
          if (at + step <= listed && shared_.before[at + step - 1] < found.block[share]) at += step;
        const bool both = at < listed && shared_.before[at] == found.block[share];
        const uint32_t marks = __ballot_sync(kAllLanes, both);
        if (lane_id() == 0) shared_.marks[local(share) / kWarp] = marks;
      }
    }
  }

  __device__ int first_tile() const { return first_tile_; }  // that is staged
  /// Blocks of the row in `tile`, after stage and its barrier.
  __device__ int entries(int tile) const {
    return max(0, min(shared_.count - tile * kAttendTileBlocks, kAttendTileBlocks));
  }
  /// Asks for the keys or the values of a tile: each warp for its share of the entries, `fresh`:
  /// but for marked ones.
  __device__ void prefetch(const ops::PageRef& cache, int tile, bool fresh) const {
    constexpr int kLines = Config::kBlockBytes / kLineBytes;
    constexpr int kWarpEntries = kAttendTileBlocks / Config::kTeamWarps;
    if (tile >= first_tile_ + kTiles) return;
#pragma unroll 1  // few registers are left where this runs
    for (int index = lane_id(); index < kWarpEntries * kLines; index += kWarp) {
      const int entry = thread() / kWarp * kWarpEntries + index / kLines;
      if (entry < entries(tile) && !(fresh && marked(tile, entry)))
        prefetch_line(at(cache, place(tile, entry)) + index % kLines * kLineBytes);
    }
  }
  /// The open block of a sequence, for one warp.
  __device__ void prefetch_tail(const ops::PageRef& cache, uint32_t place) const {
    if (lane_id() * kLineBytes < Config::kBlockBytes)
      prefetch_line(at(cache, place) + lane_id() * kLineBytes);
  }

  /// `entry` is below the row's entries in the tile.
  __device__ const std::byte* key(int tile, int entry) const {
    return at(args_.cache.keys, place(tile, entry));
  }
  __device__ const std::byte* value(int tile, int entry) const {
    return at(args_.cache.values, place(tile, entry));
  }
  /// The K/V head's part of a block.
  __device__ const std::byte* at(const ops::PageRef& cache, uint32_t place) const {
    return cache.pool + cache.offset +
           static_cast<size_t>(place / Config::kPageBlocks) * cache.page_stride +
           (head_bytes_ + place % Config::kPageBlocks * Config::kBlockBytes);
  }
  __device__ static uint32_t place_of(const int32_t* pages, int block) {
    const auto index = static_cast<uint32_t>(block);
    return static_cast<uint32_t>(pages[index / Config::kPageBlocks]) * Config::kPageBlocks +
           index % Config::kPageBlocks;
  }

 private:
  static constexpr int kLineBytes = 128;

  /// Which staged entry a thread's entry `share` is, and whether the list has room for it.
  __device__ static int local(int share) { return share * Config::kTeamThreads + thread(); }
  __device__ bool exists(int share) const {
    return local(share) < kEntries &&
           first_tile_ * kAttendTileBlocks + local(share) < args_.budget_blocks;
  }
  /// Of the team.
  __device__ static int thread() { return static_cast<int>(threadIdx.x) % Config::kTeamThreads; }
  __device__ bool marked(int tile, int entry) const {
    if constexpr (Config::kRows == 1) return false;
    const int index = (tile - first_tile_) * kAttendTileBlocks + entry;
    return (shared_.marks[index / kWarp] >> index % kWarp & 1U) != 0;
  }
  __device__ uint32_t place(int tile, int entry) const {
    return shared_.place[(tile - first_tile_) * kAttendTileBlocks + entry];
  }

  Shared& shared_;
  const ops::QsaAttendArgs& args_;
  uint32_t head_bytes_;
  int first_tile_ = 0;
};

#endif

}  // namespace tessera::cuda::device
