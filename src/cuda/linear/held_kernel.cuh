// SPDX-License-Identifier: Apache-2.0
// Decode products: the activations that meet a warp's slices of a part of K stay in its registers,
// and weight rows of the block pass by, tile after tile; then comes the next part of K. For few
// rows small enough for the first weights of the next kernel to arrive meanwhile; for many, blocks
// of a cluster share weight rows.
#pragma once

#include <type_traits>

#include "cuda/device/cluster.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/named_barrier.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/linear/linear_plan.h"
#include "cuda/linear/stream_slice.cuh"

namespace tessera::cuda {

struct HeldArgs {
  const device::Bf16* x = nullptr;  // [rows, in_features]
  StreamPart parts[kMaxStreamParts];
  int rows = 0;
  int in_features = 0;
  int row_bytes = 0;   // of every part: a launch has one weight type
  int total_rows = 0;  // of all parts, one after the other
  int rows_per_team = 0;
  int splits = 1;   // of every weight row, one after the other
  int cluster = 1;  // blocks that share every weight row
};

template <class Config>
using ElementOf = std::conditional_t<Config::kType == DType::kF8E4M3, device::F8, device::Bf16>;

template <class Config>
struct HeldShared {
  alignas(128) std::byte ring[Config::kBlockChains][Config::kRingStages][Config::kStageBytes];
  /// Of each chain, as the lanes of its warps hold them. Where rows are split, the second buffer
  /// keeps the sums of the splits so far, of this block's tiles of a batch.
  float4 sums[Config::kSumBuffers][Config::kBlockChains][Config::kPassTiles][device::kWarp];
  alignas(128) device::Barrier arrived;  // counts the bytes that the other blocks send
  /// Sums of this block's tiles of a round (every cluster-th one) from all blocks of the cluster:
  /// [tile / cluster][rank]. Not there in launches without clusters.
  alignas(128) float2 exchange[Config::kBatchTiles][Config::kTilePairs];
};

/// Among the warps that share a chain's weights, and the chain in its block.
template <class Config>
__device__ __forceinline__ int warp_group() {
  return device::warp_id() % Config::kGroups;
}
template <class Config>
__device__ __forceinline__ int block_chain() {
  return device::warp_id() / Config::kGroups;
}

/// Slices first, first + kChains, .. of every weight row: those of this warp's chain in a split.
template <class Config>
struct SliceShare {
  int first;
  int count;

  __device__ SliceShare(const HeldArgs& args, int split) {
    const int slices = args.row_bytes / Config::kSliceBytes;
    const int end = slices * (split + 1) / args.splits;
    first = slices * split / args.splits + device::cluster_rank() * Config::kBlockChains +
            block_chain<Config>();
    count = max(0, end - first + Config::kChains - 1) / Config::kChains;
  }
};

/// Weight rows begin .. end of the launch: those of this block's team.
struct TeamRows {
  int begin;
  int end;

  __device__ explicit TeamRows(const HeldArgs& args) {
    begin = static_cast<int>(blockIdx.y) * args.rows_per_team;
    end = min(begin + args.rows_per_team, args.total_rows);
  }

  /// No tile has rows of two parts.
  __device__ int tiles(const HeldArgs& args) const {
    int count = 0;
    for (int part = 0, row = begin; row < end; ++part) {
      const int part_rows = max(0, min(end, args.parts[part].end) - row);
      count += (part_rows + StreamGeometry::kTileRows - 1) / StreamGeometry::kTileRows;
      row += part_rows;
    }
    return count;
  }
};

/// A tile: 16 weight rows of one part, fewer at its end or the team's.
struct TilePosition {
  int part = 0;
  int row;  // of the part

  __device__ TilePosition(const HeldArgs& args, const TeamRows& team) {
    while (team.begin >= args.parts[part].end) ++part;
    row = team.begin - args.parts[part].first;
  }

  /// Rows of the part from this tile's first one on that are the team's.
  __device__ __forceinline__ int left(const HeldArgs& args, const TeamRows& team) const {
    return min(args.parts[part].end, team.end) - args.parts[part].first - row;
  }
  __device__ __forceinline__ void next(const HeldArgs& args) {
    row += StreamGeometry::kTileRows;
    if (row >= args.parts[part].out_features) ++part, row = 0;
  }
};

/// The ring of one chain: its warps ask for the chain's slices of tile after tile, some rows each,
/// and get them in this order.
template <class Config>
class HeldFeed {
 public:
  __device__ HeldFeed(const HeldArgs& args, HeldShared<Config>& shared, const TeamRows& team,
                      int tiles)
      : args_(args),
        team_(team),
        at_(args, team),
        batch_(at_),
        ring_(&shared.ring[block_chain<Config>()][0][0]),
        left_(tiles) {
    next_round();
  }

  /// All but one stage: weights are constants, so this may precede wait_for_inputs.
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (int stage = 0; stage + 1 < Config::kRingStages; ++stage) ask();
  }

  /// The next stage, valid until the next call.
  __device__ __forceinline__ const std::byte* take() {
    device::wait_copies<Config::kRingStages - 2>();
    // The copies of all lanes of the chain have landed, and all are done with the stage handed out
    // before, which is the one that is filled now.
    if constexpr (Config::kGroups == 1)
      __syncwarp();
    else
      device::named_barrier_sync(1 + block_chain<Config>(), Config::kGroups * device::kWarp);
    ask();
    return ring_ + stage_ * Config::kStageBytes;
  }

 private:
  static constexpr int kPieces = Config::kSliceBytes / device::kVectorBytes;
  static constexpr int kWarpRows = device::kWarp / kPieces;  // that a warp copies at once
  static constexpr int kRowStep = Config::kGroups * kWarpRows;
  static_assert(Config::kTileRows % kRowStep == 0 && kWarpRows % 2 == 0);

  static __device__ int lane_row() {
    return warp_group<Config>() * kWarpRows + device::lane_id() / kPieces;
  }
  static __device__ int lane_piece() { return device::lane_id() % kPieces; }

  /// One group of copies, empty at the end: take() counts groups. Leaves stage_ at the next stage,
  /// which is the oldest one.
  __device__ __forceinline__ void ask() {
    if (round_left_ > 0) {
      std::byte* target =
          ring_ + stage_ * Config::kStageBytes + stage_offset(lane_row(), lane_piece());
      const std::byte* source = source_ + slice_ * Config::kRoundBytes;
#pragma unroll
      for (int row = 0; row < Config::kTileRows; row += kRowStep)
        device::copy_async_16(target + row * Config::kSliceBytes,
                              source + static_cast<size_t>(row) * args_.row_bytes,
                              row < lane_rows_);
      if (++slice_ == slices_) next_tile();
    }
    device::commit_copies();
    stage_ = stage_ + 1 == Config::kRingStages ? 0 : stage_ + 1;
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

  /// The next split of the batch, or the first one of the next batch, of which this chain has
  /// slices.
  __device__ __forceinline__ void next_round() {
    while (true) {
      if (++split_ == args_.splits) {
        split_ = 0;
        left_ -= Config::kBatchTiles;
        batch_ = at_;
      } else {
        at_ = batch_;
      }
      // The last loads are under way: what the next kernel loads early no longer delays them.
      if (left_ <= 0) return device::allow_next_kernel();
      const SliceShare<Config> share(args_, split_);
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
    lane_rows_ = at_.left(args_, team_) - lane_row();
  }

  const HeldArgs& args_;
  const TeamRows& team_;
  TilePosition at_;     // what is asked for
  TilePosition batch_;  // first tile of the batch
  std::byte* ring_;
  const std::byte* source_{};  // what this lane copies: its first row of the tile, slice 0
  int first_slice_ = 0;
  int slices_ = 0;      // of every tile
  int lane_rows_ = 0;   // of the part and team, from this lane's first row of the tile
  int left_;            // tiles of this batch and those after it
  int round_left_ = 0;  // tiles of this split and batch that are not asked for in full
  int split_ = -1;
  int slice_ = 0;
  int stage_ = 0;
};

/// The activation rows of this block's pass. Columns past the last row repeat it, and their sums
/// are dropped.
template <class Config>
struct HeldRows {
  int first;
  int count;

  __device__ explicit HeldRows(const HeldArgs& args) {
    first = static_cast<int>(blockIdx.x) / args.cluster * Config::kPassRows;
    count = min(args.rows - first, Config::kPassRows);
  }
};

/// Activations that meet this warp's slices of every weight row.
template <class Config>
struct HeldColumns {
  using Slice = SliceOf<ElementOf<Config>>;
  uint4 raw[Config::kSlices][Config::kColumnTiles][Slice::kVectors];

  __device__ __forceinline__ void load(const HeldArgs& args, const HeldRows<Config>& rows,
                                       const SliceShare<Config>& share) {
    const int first = warp_group<Config>() * Config::kColumnTiles;
#pragma unroll
    for (int tile = 0; tile < Config::kColumnTiles; ++tile) {
      const int column =
          min((first + tile) * Config::kColumns + device::lane_id() / 4, rows.count - 1);
      const device::Bf16* x =
          args.x + static_cast<size_t>(rows.first + column) * static_cast<size_t>(args.in_features);
#pragma unroll
      for (int slice = 0; slice < Config::kSlices; ++slice)
#pragma unroll
        for (int index = 0; index < Slice::kVectors; ++index)
          if (slice < share.count)
            raw[slice][tile][index] = *reinterpret_cast<const uint4*>(
                x + (share.first + slice * Config::kChains) * Slice::kElements +
                Slice::element(index));
    }
  }
};

/// Scales of E4M3 slice `slice` for this lane's two rows of a tile.
__device__ __forceinline__ float2 scales_of(const HeldArgs& args, const TilePosition& at,
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

  __device__ __forceinline__ void store(const HeldArgs& args, const TeamRows& team,
                                        const TilePosition& at, const HeldRows<Config>& rows,
                                        const float2& sums) const {
    if (row >= at.left(args, team)) return;
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

/// A tile of the current round, and the round's split of K.
struct RoundTile {
  TilePosition at;
  int local;  // in the round
  int split;
};

/// Adds the sums of a split to those of the splits before, and stores the outputs after the last.
template <class Config>
__device__ __forceinline__ void add_split(HeldShared<Config>& shared, const HeldArgs& args,
                                          const RoundTile& tile, const HeldRows<Config>& rows,
                                          const TeamRows& team, int index, float2 sums) {
  static_assert(Config::kBlockChains * Config::kGroups == Config::kBatchTiles);
  float2& kept = reinterpret_cast<float2*>(&shared.sums[1][tile.local / args.cluster][0][0])[index];
  if (tile.split > 0) sums = kept + sums;
  if (tile.split + 1 < args.splits)
    kept = sums;
  else
    OutputPair<Config>(index).store(args, team, tile.at, rows, sums);
}

/// Adds the chains' sums of a tile and hands them to add_split, or sends them to the block of the
/// cluster that stores this tile.
template <class Config>
__device__ __forceinline__ void add_chains(HeldShared<Config>& shared, const HeldArgs& args,
                                           const RoundTile& tile, const TeamRows& team,
                                           const HeldRows<Config>& rows,
                                           const float (&sums)[Config::kColumnTiles][4]) {
  auto& buffer = shared.sums[args.splits == 1 ? tile.local % Config::kSumBuffers : 0];
  // With two buffers the barrier below has also seen the readers of the tile before the last.
  if (args.splits > 1) __syncthreads();
#pragma unroll
  for (int column = 0; column < Config::kColumnTiles; ++column)
    buffer[block_chain<Config>()][warp_group<Config>() * Config::kColumnTiles + column]
          [device::lane_id()] = {sums[column][0], sums[column][1], sums[column][2],
                                 sums[column][3]};
  __syncthreads();  // every warp's sums are there
  const int rank = device::cluster_rank(), owner = tile.local % args.cluster;
  for (int index = static_cast<int>(threadIdx.x); index < Config::kTilePairs;
       index += Config::kThreads) {
    if (OutputPair<Config>(index).column >= rows.count) continue;
    const float2 total = add_pairs<Config::kBlockChains>(
        [&](int chain) { return reinterpret_cast<const float2*>(&buffer[chain][0][0])[index]; });
    if constexpr (Config::kGroups == 1) {
      add_split(shared, args, tile, rows, team, index, total);
    } else {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
      float2* slot = shared.exchange[tile.local - owner + rank] + index;
      if (owner == rank)
        *slot = total;
      else
        device::store_remote_counted(device::remote_address(slot, owner), total,
                                     device::remote_address(&shared.arrived, owner));
#endif
    }
  }
}

/// Adds the blocks' sums of those of the round's tiles that this block stores. `tile` is the first
/// tile of the round.
template <class Config>
__device__ __forceinline__ void add_blocks(HeldShared<Config>& shared, const HeldArgs& args,
                                           const TeamRows& team, RoundTile tile, int tiles,
                                           uint32_t parity, const HeldRows<Config>& rows) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  device::wait_barrier(&shared.arrived, parity);  // the sums of all other blocks are there
  for (; tile.local < tiles; ++tile.local, tile.at.next(args)) {
    if (tile.local % Config::kGroups != device::cluster_rank()) continue;
    const auto* slots = shared.exchange + tile.local / Config::kGroups * Config::kGroups;
    // A thread has stored this block's sums of the outputs that it adds.
    for (int index = static_cast<int>(threadIdx.x); index < Config::kTilePairs;
         index += Config::kThreads) {
      if (OutputPair<Config>(index).column >= rows.count) continue;
      add_split(shared, args, tile, rows, team, index,
                add_pairs<Config::kGroups>([&](int rank) { return slots[rank][index]; }));
    }
  }
#endif
}

/// Announces what the other blocks send of the next round of `tiles`. Before their first store,
/// cluster_wait.
template <class Config>
__device__ __forceinline__ void expect_sums(HeldShared<Config>& shared, const HeldArgs& args,
                                            int tiles, bool is_first,
                                            const HeldRows<Config>& rows) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  // All threads have seen the round before: this one may complete at once, without any sums.
  if (!is_first) __syncthreads();
  if (threadIdx.x == 0) {
    const int owned = (tiles - device::cluster_rank() + args.cluster - 1) / args.cluster;
    const int pairs = (rows.count + 1) / 2 * Config::kTileRows;  // that hold live columns
    if (is_first) device::init_barrier(&shared.arrived, 1);
    if (is_first) device::fence_barrier_init();
    device::arrive_expect(&shared.arrived, static_cast<uint32_t>(owned * (args.cluster - 1) *
                                                                 pairs * sizeof(float2)));
  }
  __syncwarp();
  // Relaxed: what this block read of the round before has arrived, for it has stored the sums.
  device::cluster_arrive_relaxed();
#endif
}

/// sums = this warp's share of the products of a tile.
template <class Config>
__device__ __forceinline__ void multiply_tile(const HeldArgs& args, const TilePosition& at,
                                              const SliceShare<Config>& share,
                                              const HeldColumns<Config>& columns,
                                              HeldFeed<Config>& feed,
                                              float (&sums)[Config::kColumnTiles][4]) {
  using Element = ElementOf<Config>;
#pragma unroll
  for (int slice = 0; slice < Config::kSlices; ++slice) {
    if (slice >= share.count) break;
    if constexpr (sizeof(Element) == 1) {
      const float2 scales = scales_of(args, at, share.first + slice * Config::kChains);
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
    held_linear(const __grid_constant__ HeldArgs args) {
  extern __shared__ __align__(128) unsigned char held_shared[];
  auto& shared = *reinterpret_cast<HeldShared<Config>*>(held_shared);
  constexpr int kBatch = Config::kBatchTiles;
  constexpr bool kClustered = Config::kGroups > 1;
  const TeamRows team(args);
  const int tiles = team.tiles(args);
  const HeldRows<Config> rows(args);
  HeldFeed<Config> feed(args, shared, team, tiles);
  feed.fill();
  if constexpr (kClustered) expect_sums(shared, args, min(kBatch, tiles), true, rows);
  device::wait_for_inputs();
  HeldColumns<Config> columns;
  TilePosition batch(args, team);
  uint32_t parity = 0;
  for (int left = tiles; left > 0; left -= kBatch) {
    const int in_batch = min(kBatch, left);
    RoundTile tile{batch, 0, 0};
    for (int split = 0; split < args.splits; ++split) {
      const SliceShare<Config> share(args, split);
      if (args.splits > 1 || left == tiles) columns.load(args, rows, share);
      for (tile = {batch, 0, split}; tile.local < in_batch; ++tile.local, tile.at.next(args)) {
        float sums[Config::kColumnTiles][4] = {};
        multiply_tile(args, tile.at, share, columns, feed, sums);
        if constexpr (kClustered)  // all blocks of the cluster expect this round
          if (tile.local == 0) device::cluster_wait();
        add_chains(shared, args, tile, team, rows, sums);
      }
      if constexpr (kClustered) {
        add_blocks(shared, args, team, {batch, 0, split}, in_batch, parity, rows);
        parity ^= 1;
        const int next = split + 1 < args.splits ? in_batch : min(kBatch, left - kBatch);
        if (next > 0) expect_sums(shared, args, next, false, rows);
      }
    }
    batch = tile.at;
  }
}

}  // namespace tessera::cuda
