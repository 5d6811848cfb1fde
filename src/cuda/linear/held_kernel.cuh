// SPDX-License-Identifier: Apache-2.0
// Decode products with BF16 weights: the activations that meet a warp's slices of K stay in its
// registers, and all weight rows of the block pass by, tile after tile. Up to 16 rows small enough
// for the first weights of the next kernel to arrive meanwhile.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/linear/held_columns.cuh"
#include "cuda/linear/linear_plan.h"
#include "cuda/linear/stream_slice.cuh"

namespace tessera::cuda {

struct HeldArgs {
  const device::Bf16* x = nullptr;  // [rows, in_features]
  StreamPart parts[kMaxStreamParts];
  int rows = 0;
  int in_features = 0;
  int row_bytes = 0;  // of every part: a launch has one weight type
  int total_tiles = 0;
  int tiles_per_group = 0;
  int split = 1;        // blocks of a cluster, which share every weight row
  int last_buffer = 1;  // of sums, which take turns: 0 where rows are split
};

template <class Config>
struct HeldShared {
  alignas(128) std::byte ring[Config::kWarps][Config::kStages][Config::kStageBytes];
  /// As the lanes of the warps hold them, of tiles in turn.
  using Sums = float4[Config::kWarps][Config::kColumnTiles][device::kWarp];
  union {
    Sums sums[2];
    /// Where rows are split there is one buffer. Sums of this block's tiles (every split-th of the
    /// group) from all blocks of the cluster: [tile / split][rank][output of the tile].
    struct {
      Sums only;
      float exchange[Config::kSplitTiles * Config::kTileOutputs];
    } split;
  };
  device::Barrier arrived;  // counts the bytes that the other blocks send
};

/// Slices first, first + kWarps, .. of every weight row: those of this warp of this block.
struct SliceShare {
  int first;
  int count;

  __device__ explicit SliceShare(const HeldArgs& args) {
    const int slices = args.row_bytes / StreamGeometry::kSliceBytes;
    const int rank = device::cluster_rank();
    const int end = slices * (rank + 1) / args.split;
    first = slices * rank / args.split + device::warp_id();
    count = (end - first + StreamGeometry::kWarps - 1) / StreamGeometry::kWarps;
  }
};

/// A tile of the launch: 16 weight rows of one part, fewer at its end.
struct TilePosition {
  int part = 0;
  int row = 0;  // of the part

  __device__ TilePosition(const HeldArgs& args, int tile) {
    while (tile >= args.parts[part].end) ++part;
    row = (tile - args.parts[part].first) * StreamGeometry::kTileRows;
  }
  __device__ __forceinline__ void next(const HeldArgs& args) {
    row += StreamGeometry::kTileRows;
    if (row >= args.parts[part].out_features) ++part, row = 0;
  }
};

/// The ring of one warp: asks for its slices of tile after tile and hands them out in this order.
template <class Config>
class HeldFeed {
 public:
  __device__ HeldFeed(const HeldArgs& args, const SliceShare& share, std::byte* ring, int begin,
                      int end)
      : args_(args), ring_(ring), slices_(share.count), left_(share.count > 0 ? end - begin : 0) {
    if (left_ == 0) {
      device::allow_next_kernel();
    } else {
      const TilePosition at(args, begin);
      part_ = at.part;
      open_part(at.row);
    }
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
    if (left_ > 0) {
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
    // The last loads are under way: what the next kernel loads early no longer delays them.
    if (--left_ == 0) return device::allow_next_kernel();
    source_ += static_cast<size_t>(Config::kTileRows) * args_.row_bytes;
    lane_rows_ -= Config::kTileRows;
    if (lane_rows_ + lane_row() > 0) return;
    ++part_;
    open_part(0);
  }

  __device__ __forceinline__ void open_part(int row) {
    const StreamPart& part = args_.parts[part_];
    lane_rows_ = part.out_features - row - lane_row();
    // Computed again: no register to keep it in.
    const int first_byte =
        SliceShare(args_).first * Config::kSliceBytes + lane_piece() * device::kVectorBytes;
    source_ = part.weight + static_cast<size_t>(row + lane_row()) * args_.row_bytes + first_byte;
  }

  const HeldArgs& args_;
  std::byte* ring_;
  const std::byte* source_{};  // what this lane copies: its first row of the tile, slice 0
  int slices_;                 // of every tile
  int left_;                   // tiles that are not asked for in full
  int part_ = 0;
  int lane_rows_ = 0;  // rows of the part from this lane's first one of the tile
  int slice_ = 0;
  int stage_ = 0;
};

/// One output of a tile, for each index: neighbours in a weight tile's rows first.
template <class Config>
struct TileOutput {
  int row;
  int column;

  __device__ explicit TileOutput(int index)
      : row(index % Config::kTileRows), column(index / Config::kTileRows) {}

  /// Where the accumulators of a warp (float4 of every lane) hold it.
  __device__ int in_sums() const {
    const int lane = row % 8 * 4 + column % Config::kColumns / 2;
    return (column / Config::kColumns * device::kWarp + lane) * 4 + row / 8 * 2 + column % 2;
  }
};

template <class Config>
__device__ __forceinline__ void store_output(const StreamPart& part, int tile_row,
                                             const PassRows<Config>& rows,
                                             const TileOutput<Config>& output, float value) {
  const int row = tile_row + output.row;
  if (row >= part.out_features) return;
  device::store_element(part.y_dtype, part.y,
                        static_cast<size_t>(rows.first + output.column) * part.out_features + row,
                        value);
}

/// Adds the warps' sums of a tile in their order and stores the outputs, or sends them to the block
/// of the cluster that stores this tile. `local` counts the tiles of the group.
template <class Config>
__device__ __forceinline__ void add_warps(HeldShared<Config>& shared, const HeldArgs& args,
                                          const TilePosition& at, int local,
                                          const PassRows<Config>& rows,
                                          const float (&sums)[Config::kColumnTiles][4]) {
  auto& buffer = shared.sums[local & args.last_buffer];
  // With two buffers the barrier below has also seen the readers of the tile before the last.
  if (args.split > 1) __syncthreads();
#pragma unroll
  for (int tile = 0; tile < Config::kColumnTiles; ++tile)
    buffer[device::warp_id()][tile][device::lane_id()] = {sums[tile][0], sums[tile][1],
                                                          sums[tile][2], sums[tile][3]};
  __syncthreads();  // every warp's sums are there
  const int rank = device::cluster_rank(), owner = local % args.split;
  float* slot = shared.split.exchange + (local - owner + rank) * Config::kTileOutputs;
  for (int index = static_cast<int>(threadIdx.x); index < rows.count * Config::kTileRows;
       index += Config::kThreads) {
    const TileOutput<Config> output(index);
    const float* of_warp = &buffer[0][0][0].x + output.in_sums();
    float total = *of_warp;
#pragma unroll
    for (int warp = 1; warp < Config::kWarps; ++warp)
      total += of_warp[warp * Config::kColumnTiles * device::kWarp * 4];
    if (args.split == 1) {
      store_output(args.parts[at.part], at.row, rows, output, total);
      continue;
    }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (owner == rank)
      slot[index] = total;
    else
      device::store_remote_counted(device::remote_address(slot + index, owner), total,
                                   device::remote_address(&shared.arrived, owner));
#endif
  }
}

/// Adds the blocks' sums of the tiles that this block stores, in their order.
template <class Config>
__device__ __forceinline__ void add_blocks(HeldShared<Config>& shared, const HeldArgs& args,
                                           int begin, int end, const PassRows<Config>& rows) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  device::wait_barrier(&shared.arrived, 0);  // the sums of all other blocks are there
  for (int tile = begin + device::cluster_rank(); tile < end; tile += args.split) {
    const TilePosition at(args, tile);
    const int slot = (tile - begin) / args.split * args.split;
    // A thread has stored this block's sums of the outputs that it adds.
    for (int index = static_cast<int>(threadIdx.x); index < rows.count * Config::kTileRows;
         index += Config::kThreads) {
      const float* sums = shared.split.exchange + slot * Config::kTileOutputs + index;
      float total = *sums;
      for (int rank = 1; rank < args.split; ++rank) total += sums[rank * Config::kTileOutputs];
      store_output(args.parts[at.part], at.row, rows, TileOutput<Config>(index), total);
    }
  }
#endif
}

/// Makes the barrier on which the other blocks count what they send. Before their first store,
/// expect_sums.
template <class Config>
__device__ __forceinline__ void open_exchange(HeldShared<Config>& shared) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    device::init_barrier(&shared.arrived, 1);
    device::fence_barrier_init();
  }
  __syncwarp();
  device::cluster_arrive_relaxed();
#endif
}

/// Waits for the barriers of the cluster and announces how much will come. Some of it may have come
/// already: without the one arrival the phase stays open.
template <class Config>
__device__ __forceinline__ void expect_sums(HeldShared<Config>& shared, const HeldArgs& args,
                                            int tiles, const PassRows<Config>& rows) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  device::cluster_wait();
  if (threadIdx.x != 0) return;
  const int owned = (tiles - device::cluster_rank() + args.split - 1) / args.split;
  const int outputs = owned * (args.split - 1) * rows.count * Config::kTileRows;
  device::arrive_expect(&shared.arrived, static_cast<uint32_t>(outputs) * sizeof(float));
#endif
}

/// sums = this warp's share of the products of a tile.
template <class Config>
__device__ __forceinline__ void multiply_tile(const SliceShare& share,
                                              const HeldColumns<Config>& columns,
                                              HeldFeed<Config>& feed,
                                              float (&sums)[Config::kColumnTiles][4]) {
#pragma unroll
  for (int slice = 0; slice < Config::kSlices; ++slice) {
    if (slice >= share.count) break;
    multiply_slice<device::Bf16>(feed.take(), columns.raw[slice], sums);
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    held_linear(const __grid_constant__ HeldArgs args) {
  extern __shared__ __align__(128) unsigned char held_shared[];
  auto& shared = *reinterpret_cast<HeldShared<Config>*>(held_shared);
  const int begin = static_cast<int>(blockIdx.y) * args.tiles_per_group;
  const int tiles = min(args.tiles_per_group, args.total_tiles - begin);
  const SliceShare share(args);
  const int pass = static_cast<int>(blockIdx.x) / args.split;
  const PassRows<Config> rows(args.rows, pass);
  HeldFeed<Config> feed(args, share, &shared.ring[device::warp_id()][0][0], begin, begin + tiles);
  feed.fill();
  if (args.split > 1) open_exchange(shared);
  device::wait_for_inputs();
  HeldColumns<Config> columns;
  columns.load(args.x, args.in_features, rows, share.first, share.count);
  if (args.split > 1) expect_sums(shared, args, tiles, rows);
  TilePosition at(args, begin);
  for (int local = 0; local < tiles; ++local, at.next(args)) {
    float sums[Config::kColumnTiles][4] = {};
    multiply_tile(share, columns, feed, sums);
    add_warps(shared, args, at, local, rows, sums);
  }
  if (args.split > 1) add_blocks(shared, args, begin, begin + tiles, rows);
}

}  // namespace tessera::cuda
