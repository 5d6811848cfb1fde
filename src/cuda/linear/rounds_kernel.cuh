// SPDX-License-Identifier: Apache-2.0
// Decode products with E4M3 weights, and with BF16 weights of any row length: the activations that
// meet a warp's slices of a part of K stay in its registers while weight rows of the block pass by,
// tile after tile; then comes the next part of K. Blocks do not meet.
#pragma once

#include "cuda/device/copy.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/linear/held_columns.cuh"
#include "cuda/linear/linear_plan.h"
#include "cuda/linear/stream_slice.cuh"

namespace tessera::cuda {

struct RoundsArgs {
  const device::Bf16* x = nullptr;  // [rows, in_features]
  StreamPart parts[kMaxStreamParts];
  int rows = 0;
  int in_features = 0;
  int row_bytes = 0;   // of every part: a launch has one weight type
  int total_rows = 0;  // of all parts, one after the other
  int rows_per_block = 0;
  int rounds = 1;  // parts of every weight row, one after the other
};

template <class Config>
struct RoundsShared {
  alignas(128) std::byte ring[Config::kWarps][Config::kStages][Config::kStageBytes];
  /// As the lanes of the warps hold them, of tiles in turn. With several rounds the second buffer
  /// keeps the sums of the rounds so far, of the tiles of a batch.
  float4 sums[2][Config::kWarps][Config::kColumnTiles][device::kWarp];
};

/// Slices first, first + kWarps, .. of every weight row: those of this warp in a round.
struct RoundShare {
  int first;
  int count;

  __device__ RoundShare(const RoundsArgs& args, int round) {
    const int slices = args.row_bytes / StreamGeometry::kSliceBytes;
    const int end = slices * (round + 1) / args.rounds;
    first = slices * round / args.rounds + device::warp_id();
    count = max(0, end - first + StreamGeometry::kWarps - 1) / StreamGeometry::kWarps;
  }
};

/// Weight rows begin .. end of the launch: those of this block.
struct BlockRows {
  int begin;
  int end;

  __device__ explicit BlockRows(const RoundsArgs& args) {
    begin = static_cast<int>(blockIdx.y) * args.rows_per_block;
    end = min(begin + args.rows_per_block, args.total_rows);
  }

  /// No tile has rows of two parts.
  __device__ int tiles(const RoundsArgs& args) const {
    int count = 0;
    for (int part = 0, row = begin; row < end; ++part) {
      const int part_rows = max(0, min(end, args.parts[part].end) - row);
      count += (part_rows + StreamGeometry::kTileRows - 1) / StreamGeometry::kTileRows;
      row += part_rows;
    }
    return count;
  }
};

/// A tile: 16 weight rows of one part, fewer at its end or the block's.
struct BlockTile {
  int part = 0;
  int row;  // of the part

  __device__ BlockTile(const RoundsArgs& args, const BlockRows& block) {
    while (block.begin >= args.parts[part].end) ++part;
    row = block.begin - args.parts[part].first;
  }

  /// Rows of the part from this tile's first one on that are the block's.
  __device__ __forceinline__ int left(const RoundsArgs& args, const BlockRows& block) const {
    return min(args.parts[part].end, block.end) - args.parts[part].first - row;
  }
  __device__ __forceinline__ void next(const RoundsArgs& args) {
    row += StreamGeometry::kTileRows;
    if (row >= args.parts[part].out_features) ++part, row = 0;
  }
};

/// The ring of one warp: asks for its slices of tile after tile, round after round, batch after
/// batch, and hands them out in this order.
template <class Config>
class RoundsFeed {
 public:
  __device__ RoundsFeed(const RoundsArgs& args, std::byte* ring, const BlockRows& block, int tiles)
      : args_(args), block_(block), at_(args, block), batch_(at_), ring_(ring), left_(tiles) {
    next_round();
  }

  /// All but one stage: weights are constants, so this may precede wait_for_inputs.
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (int stage = 0; stage + 1 < Config::kStages; ++stage) ask();
  }

  /// The next stage, valid until the next call.
  __device__ __forceinline__ const std::byte* take() {
    device::wait_copies<Config::kStages - 2>();
    // Every lane's copies have landed, and every lane is done with the stage handed out before,
    // which is the one that is filled now.
    __syncwarp();
    ask();
    return ring_ + stage_ * Config::kStageBytes;
  }

 private:
  static constexpr int kPieces = Config::kSliceBytes / device::kVectorBytes;
  static constexpr int kRowStep = device::kWarp / kPieces;  // rows that a warp copies at once

  static __device__ int lane_row() { return device::lane_id() / kPieces; }
  static __device__ int lane_piece() { return device::lane_id() % kPieces; }

  /// One group of copies, empty at the end: take() counts groups. Leaves stage_ at the next stage,
  /// which is the oldest one.
  __device__ __forceinline__ void ask() {
    if (round_left_ > 0) {
      std::byte* target =
          ring_ + stage_ * Config::kStageBytes + stage_offset(lane_row(), lane_piece());
      const std::byte* source = source_ + slice_ * Config::kStrideBytes;
#pragma unroll
      for (int row = 0; row < Config::kTileRows; row += kRowStep)
        device::copy_async_16(target + row * Config::kSliceBytes,
                              source + static_cast<size_t>(row) * args_.row_bytes,
                              row < lane_rows_);
      if (++slice_ == slices_) next_tile();
    }
    device::commit_copies();
    stage_ = stage_ + 1 == Config::kStages ? 0 : stage_ + 1;
  }

  __device__ __forceinline__ void next_tile() {
    slice_ = 0;
    const int part = at_.part;
    at_.next(args_);
    if (--round_left_ == 0) return next_round();
    source_ += static_cast<size_t>(Config::kTileRows) * args_.row_bytes;
    lane_rows_ -= Config::kTileRows;
    if (at_.part != part) open_part();
  }

  /// The next round of the batch, or the first one of the next batch, of which this warp has
  /// slices.
  __device__ __forceinline__ void next_round() {
    while (true) {
      if (++round_ == args_.rounds) {
        round_ = 0;
        left_ -= Config::kBatchTiles;
        batch_ = at_;
      } else {
        at_ = batch_;
      }
      // The last loads are under way: what the next kernel loads early no longer delays them.
      if (left_ <= 0) return device::allow_next_kernel();
      const RoundShare share(args_, round_);
      const int tiles = min(left_, Config::kBatchTiles);
      first_slice_ = share.first;
      slices_ = share.count;
      if (slices_ > 0) {
        round_left_ = tiles;
        return open_part();
      }
      for (int tile = 0; tile < tiles; ++tile) at_.next(args_);
    }
  }

  __device__ __forceinline__ void open_part() {
    source_ = args_.parts[at_.part].weight +
              static_cast<size_t>(at_.row + lane_row()) * args_.row_bytes +
              first_slice_ * Config::kSliceBytes + lane_piece() * device::kVectorBytes;
    lane_rows_ = at_.left(args_, block_) - lane_row();
  }

  const RoundsArgs& args_;
  const BlockRows& block_;
  BlockTile at_;     // what is asked for
  BlockTile batch_;  // first tile of the batch
  std::byte* ring_;
  const std::byte* source_{};  // what this lane copies: its first row of the tile, slice 0
  int first_slice_ = 0;
  int slices_ = 0;      // of every tile
  int lane_rows_ = 0;   // of the part and block, from this lane's first row of the tile
  int left_;            // tiles of this batch and those after it
  int round_left_ = 0;  // tiles of this round and batch that are not asked for in full
  int round_ = -1;
  int slice_ = 0;
  int stage_ = 0;
};

/// Scales of E4M3 slice `slice` for this lane's two rows of a tile.
__device__ __forceinline__ float2 scales_of(const RoundsArgs& args, const BlockTile& at,
                                            int slice) {
  const StreamPart& part = args.parts[at.part];
  if (part.scale == nullptr) return {1.0F, 1.0F};
  const auto scale = [&](int row) {
    const int block = min(row, part.out_features - 1) / ops::kScaleBlock;
    return __ldg(part.scale + static_cast<size_t>(block) * part.scale_cols + slice);
  };
  const int row = at.row + device::lane_id() / 4;
  return {scale(row), scale(row + StreamGeometry::kTileRows / 2)};
}

/// Where pair `index` of a tile's sums belongs: row `row` of the tile, columns column and column +
/// 1 of the pass.
template <class Config>
struct OutputPair {
  int row;
  int column;

  __device__ explicit OutputPair(int index) {
    const int lane = index / 2 % device::kWarp;
    row = lane / 4 + index % 2 * (Config::kTileRows / 2);
    column = index / (2 * device::kWarp) * Config::kColumns + lane % 4 * 2;
  }

  __device__ __forceinline__ void store(const RoundsArgs& args, const BlockRows& block,
                                        const BlockTile& at, const PassRows<Config>& rows,
                                        const float2& sums) const {
    if (row >= at.left(args, block)) return;
    const StreamPart& part = args.parts[at.part];
    const size_t y = static_cast<size_t>(rows.first + column) * part.out_features + at.row + row;
    device::store_element(part.y_dtype, part.y, y, sums.x);
    if (column + 1 < rows.count)
      device::store_element(part.y_dtype, part.y, y + part.out_features, sums.y);
  }
};

__device__ __forceinline__ float2 operator+(const float2& a, const float2& b) {
  return {a.x + b.x, a.y + b.y};
}

/// Sum of value(0), .. value(kCount - 1) in pairs, neighbours first.
template <int kCount, class Value>
__device__ __forceinline__ float2 add_pairs(const Value& value, int first = 0) {
  if constexpr (kCount == 1)
    return value(first);
  else
    return add_pairs<kCount / 2>(value, first) + add_pairs<kCount / 2>(value, first + kCount / 2);
}

/// A tile of the current batch, in a round.
struct RoundTile {
  BlockTile at;
  int local;  // in the batch
  int round;
};

/// Adds the warps' sums of a tile, and these to those of the rounds before; stores the outputs
/// after the last.
template <class Config>
__device__ __forceinline__ void add_warps(RoundsShared<Config>& shared, const RoundsArgs& args,
                                          const RoundTile& tile, const BlockRows& block,
                                          const PassRows<Config>& rows,
                                          const float (&sums)[Config::kColumnTiles][4]) {
  static_assert(Config::kWarps == Config::kBatchTiles);
  auto& buffer = shared.sums[args.rounds == 1 ? tile.local % 2 : 0];
  auto* kept = reinterpret_cast<float2*>(&shared.sums[1][tile.local][0][0]);
  // With two buffers the barrier below has also seen the readers of the tile before the last.
  if (args.rounds > 1) __syncthreads();
#pragma unroll
  for (int column = 0; column < Config::kColumnTiles; ++column)
    buffer[device::warp_id()][column][device::lane_id()] = {sums[column][0], sums[column][1],
                                                            sums[column][2], sums[column][3]};
  __syncthreads();  // every warp's sums are there
  for (int index = static_cast<int>(threadIdx.x); index < Config::kTilePairs;
       index += Config::kThreads) {
    const OutputPair<Config> output(index);
    if (output.column >= rows.count) continue;
    float2 total = add_pairs<Config::kWarps>(
        [&](int warp) { return reinterpret_cast<const float2*>(&buffer[warp][0][0])[index]; });
    if (tile.round > 0) total = kept[index] + total;
    if (tile.round + 1 < args.rounds)
      kept[index] = total;
    else
      output.store(args, block, tile.at, rows, total);
  }
}

/// sums = this warp's share of the products of a tile.
template <class Config>
__device__ __forceinline__ void multiply_tile(const RoundsArgs& args, const BlockTile& at,
                                              const RoundShare& share,
                                              const HeldColumns<Config>& columns,
                                              RoundsFeed<Config>& feed,
                                              float (&sums)[Config::kColumnTiles][4]) {
  using Element = ElementOf<Config>;
#pragma unroll
  for (int slice = 0; slice < Config::kSlices; ++slice) {
    if (slice >= share.count) break;
    if constexpr (sizeof(Element) == 1) {
      const float2 scales = scales_of(args, at, share.first + slice * Config::kWarps);
      float block[Config::kColumnTiles][4] = {};
      multiply_slice<Element>(feed.take(), columns.raw[slice], block);
#pragma unroll
      for (int column = 0; column < Config::kColumnTiles; ++column)
#pragma unroll
        for (int value = 0; value < 4; ++value)
          sums[column][value] += block[column][value] * (value < 2 ? scales.x : scales.y);
    } else {
      multiply_slice<Element>(feed.take(), columns.raw[slice], sums);
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    rounds_linear(const __grid_constant__ RoundsArgs args) {
  extern __shared__ __align__(128) unsigned char rounds_shared[];
  auto& shared = *reinterpret_cast<RoundsShared<Config>*>(rounds_shared);
  constexpr int kBatch = Config::kBatchTiles;
  const BlockRows block(args);
  const int tiles = block.tiles(args);
  const PassRows<Config> rows(args.rows, static_cast<int>(blockIdx.x));
  RoundsFeed<Config> feed(args, &shared.ring[device::warp_id()][0][0], block, tiles);
  feed.fill();
  device::wait_for_inputs();
  HeldColumns<Config> columns;
  BlockTile batch(args, block);
  for (int left = tiles; left > 0; left -= kBatch) {
    RoundTile tile{batch, 0, 0};
    for (int round = 0; round < args.rounds; ++round) {
      const RoundShare share(args, round);
      if (args.rounds > 1 || left == tiles)
        columns.load(args.x, args.in_features, rows, share.first, share.count);
      for (tile = {batch, 0, round}; tile.local < min(kBatch, left);
           ++tile.local, tile.at.next(args)) {
        float sums[Config::kColumnTiles][4] = {};
        multiply_tile(args, tile.at, share, columns, feed, sums);
        add_warps(shared, args, tile, block, rows, sums);
      }
    }
    batch = tile.at;
  }
}

}  // namespace tessera::cuda
