// SPDX-License-Identifier: Apache-2.0
// Producer warps of the tile kernel: they walk the tiles of their rows' lists, find which blocks
// the rows share and copy each of them once into a ring in shared memory.
#pragma once

#include "cuda/qsa_attend/attend_tile_config.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// All producer warps run this in step and compute the same; each copies its share of the blocks,
/// the first one describes the passes. Lane l holds entry l of each row's tile.
template <class Config>
class AttendProducer {
 public:
  using Shared = AttendShared<Config>;
  static constexpr int kRows = Config::kRows;

  __device__ AttendProducer(Shared& shared, const ops::QsaAttendArgs& args, const AttendRows& rows,
                            const AttendSplit& split, int kv_head, int rank)
      : shared_(shared), args_(args), rows_(rows), kv_head_(kv_head) {
    begin_ = rank * split.tiles_per_block;
    end_ = min(begin_ + split.tiles_per_block, split.num_tiles);
    load_lists(begin_);
    tail_tile_ = split.num_tiles - 1;
    int most = 0;
    bool any_tail = false;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const bool active = row < rows.count;
      const int64_t tokens = rows.position + row + 1;
      count_[row] = active ? args.counts[rows.first + row] : 0;
      tail_tokens_[row] = active ? static_cast<int>(tokens % Config::kBlock) : 0;
      tail_block_[row] = static_cast<int>(tokens / Config::kBlock);
      most = max(most, count_[row]);
      any_tail = any_tail || tail_tokens_[row] > 0;
    }
    has_tail_ = any_tail && tail_tile_ >= begin_ && tail_tile_ < end_;
    list_end_ = min(end_, (most + kAttendTileBlocks - 1) / kAttendTileBlocks);
  }

  /// Passes of every tile with entries, in order; one empty pass when there is none. Waits for
  /// consumers only for room in the ring.
  __device__ void run() {
    int tile = next_tile(begin_);
    mask_lists(begin_);  // a later first tile has no list entries, nor has this one then
    load_pages();
    do {
      const int following = tile < end_ ? next_tile(tile + 1) : end_;
      int row = 0;
      do {
        const int stage = pass_ % Shared::kPasses;
        while (freed_segments_ < 2 * (pass_ - 1)) wait_segment();  // the stage's last pass is over
        const int first_row = row;
        row = collect(tile, first_row);
        if (writer()) describe(stage, tile, first_row, row, row == kRows && following == end_);
        __syncwarp();
        if (writer() && lane_id() == 0) arrive(&shared_.keys_full[stage]);
        copy(args_.cache.keys);
        arrive_after_copies(&shared_.keys_full[stage]);
        copy(args_.cache.values);
        arrive_after_copies(&shared_.values_full[stage]);
        ++pass_;
      } while (row < kRows);
      tile = following;
      load_lists(tile);
      mask_lists(tile);
      load_pages();
    } while (tile < end_);
  }

 private:
  static constexpr int kNoBlock = INT32_MAX;  // sorts behind every block
  static constexpr int kPageBlocks = ops::kPageTokens / Config::kBlock;

  __device__ bool writer() const { return warp() == 0; }
  __device__ int warp() const { return warp_id() - Config::kConsumerWarps; }

  /// First tile at or after `tile` in which some row has an entry; end_ if there is none.
  __device__ int next_tile(int tile) const {
    if (tile < list_end_) return tile;
    return has_tail_ && tile <= tail_tile_ ? tail_tile_ : end_;
  }

  /// Reads the list whether or not the row's count reaches so far, so that the two loads overlap.
  __device__ void load_lists(int tile) {
    const int entry = tile * kAttendTileBlocks + lane_id();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const size_t list =
          static_cast<size_t>(rows_.first + row) * static_cast<size_t>(args_.budget_blocks);
      const bool exists = row < rows_.count && entry < args_.budget_blocks;
      block_[row] = exists ? args_.blocks[list + static_cast<size_t>(entry)] : kNoBlock;
    }
  }
  __device__ void mask_lists(int tile) {
    const int entry = tile * kAttendTileBlocks + lane_id();
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      if (tile >= end_ || entry >= count_[row]) block_[row] = kNoBlock;
  }
  __device__ void load_pages() {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      page_[row] = block_[row] == kNoBlock ? 0 : rows_.pages[block_[row] / kPageBlocks];
      const bool tail = has_tail_ && tail_tokens_[row] > 0;
      tail_page_[row] = tail ? rows_.pages[tail_block_[row] / kPageBlocks] : 0;
    }
  }

  /// Place of `key` of each lane among the blocks of row `other`, or -1.
  __device__ int find(int other, int key) const {
    int at = 0;
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2)
      at += __shfl_sync(kAllLanes, block_[other], at + step - 1) < key ? step : 0;
    const bool match = __shfl_sync(kAllLanes, block_[other], at) == key;
    const int place = __shfl_sync(kAllLanes, place_[other], at);
    return match && key != kNoBlock ? place : -1;
  }

  /// Takes rows from `first_row` on into the pass while their different blocks fit; returns the
  /// end. Fills place_, source and num_blocks_.
  __device__ int collect(int tile, int first_row) {
    int2* source = shared_.source[warp()];
    __syncwarp();  // the copies of the last pass have read their sources
    num_blocks_ = 0;
    int end = first_row;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row != end) continue;  // done in an earlier pass, or left for a later one
      int found = -1;
#pragma unroll
      for (int other = 0; other < row; ++other)
        if (other >= first_row) found = max(found, find(other, block_[row]));
      const bool fresh = block_[row] != kNoBlock && found < 0;
      const uint32_t fresh_lanes = __ballot_sync(kAllLanes, fresh);
      const int added = __popc(fresh_lanes);
      if (row > first_row && num_blocks_ + added > Config::kUnion) continue;
      const uint32_t lanes_below = (1U << lane_id()) - 1;
      place_[row] = fresh ? num_blocks_ + __popc(fresh_lanes & lanes_below) : max(found, 0);
      if (fresh) source[place_[row]] = {page_[row], block_[row] % kPageBlocks};
      num_blocks_ += added;
      end = row + 1;
    }
    if (has_tail_ && tile == tail_tile_) collect_tails(first_row, end, source);
    __syncwarp();  // every lane's sources are there
    return end;
  }

  /// The tails of neighbouring rows lie in the same block or in neighbouring ones.
  __device__ void collect_tails(int first_row, int end, int2* source) {
    int last_block = -1;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row < first_row || row >= end || tail_tokens_[row] == 0) continue;
      if (tail_block_[row] != last_block) {
        last_block = tail_block_[row];
        if (lane_id() == 0) source[num_blocks_] = {tail_page_[row], last_block % kPageBlocks};
        ++num_blocks_;
      }
      tail_place_[row] = num_blocks_ - 1;
    }
  }

  __device__ void describe(int stage, int tile, int first_row, int end, bool last) {
    AttendPass<Config>& pass = shared_.pass[stage];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      pass.place[row][lane_id()] = static_cast<uint8_t>(place_[row]);
      if (lane_id() != 0) continue;
      const int left = tile < end_ ? count_[row] - tile * kAttendTileBlocks : 0;
      pass.entries[row] = max(0, min(left, kAttendTileBlocks));
      pass.tail_tokens[row] = has_tail_ && tile == tail_tile_ ? tail_tokens_[row] : 0;
      pass.place[row][kTailEntry] = static_cast<uint8_t>(tail_place_[row]);
    }
    if (lane_id() != 0) return;
    pass.row_begin = first_row;
    pass.row_end = end;
    pass.last = last ? 1 : 0;
    pass.first_key = issued_ % Config::kSlots;
    pass.first_value = (issued_ + num_blocks_) % Config::kSlots;
  }

  /// Until the consumers have read the oldest segment (the keys or the values of a pass).
  __device__ void wait_segment() {
    const int pass = freed_segments_ / 2, stage = pass % Shared::kPasses;
    Barrier* barriers = freed_segments_ % 2 == 0 ? shared_.keys_empty : shared_.values_empty;
    wait_barrier(&barriers[stage], static_cast<uint32_t>(pass / Shared::kPasses % 2));
    freed_ += stage == 0 ? segment_blocks_[0] : segment_blocks_[1];
    ++freed_segments_;
  }

  /// The blocks of the pass to the next slots of the ring, eight lanes to a block.
  __device__ void copy(const ops::PageRef& cache) {
    constexpr int kBlockLanes = 8, kWarpBlocks = kWarp / kBlockLanes;
    constexpr int kRound = kWarpBlocks * Config::kProducerWarps;
    if (pass_ % Shared::kPasses == 0)
      segment_blocks_[0] = num_blocks_;
    else
      segment_blocks_[1] = num_blocks_;
    const int lane = lane_id() % kBlockLanes;
    const std::byte* head = cache.pool + cache.offset +
                            static_cast<size_t>(kv_head_) * ops::kPageTokens * Config::kTokenBytes +
                            lane * kVectorBytes;
    for (int begin = 0; begin < num_blocks_; begin += kRound) {
      const int end = min(begin + kRound, num_blocks_);
      while (issued_ + end - freed_ > Config::kSlots) wait_segment();
      const int place = begin + warp() * kWarpBlocks + lane_id() / kBlockLanes;
      if (place >= end) continue;
      const int2 source = shared_.source[warp()][place];
      const std::byte* from =
          head + static_cast<size_t>(source.x) * cache.page_stride + source.y * Config::kBlockBytes;
      std::byte* to = shared_.ring + (issued_ + place) % Config::kSlots * Config::kBlockBytes;
      constexpr int kSteps = Config::kTokenVectors / kBlockLanes;
#pragma unroll
      for (int token = 0; token < Config::kBlock; ++token) {
        const int vector = lane ^ swizzle_key(place, token);
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
          copy_async_16(
              to + token * Config::kTokenBytes + (step * kBlockLanes + vector) * kVectorBytes,
              from + (token * kSteps + step) * kBlockLanes * kVectorBytes);
      }
    }
    issued_ += num_blocks_;
  }

  Shared& shared_;
  const ops::QsaAttendArgs& args_;
  const AttendRows& rows_;
  int kv_head_, begin_, end_, tail_tile_, list_end_;
  bool has_tail_;
  int count_[kRows], tail_tokens_[kRows], tail_block_[kRows];
  int block_[kRows], page_[kRows], place_[kRows]{};
  int tail_page_[kRows], tail_place_[kRows]{};
  int num_blocks_ = 0;  // of the pass
  int pass_ = 0;
  int issued_ = 0, freed_ = 0;  // slots since the start
  int freed_segments_ = 0;
  int segment_blocks_[2]{};  // blocks of a segment of the last pass with this parity
};

#endif

}  // namespace tessera::cuda::device
