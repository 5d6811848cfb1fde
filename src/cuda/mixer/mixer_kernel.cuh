// SPDX-License-Identifier: Apache-2.0
// The whole mixer of decode rows in one launch. Every block copies its share of both weight
// matrices to shared memory before it looks at an activation; after that the way of a row is: down
// product over a K slice, sum over the block's warps, sum over the cluster (each rank owns the rows
// r with r % 8 == rank), SiLU, grid barrier, up product, gates, mean over the branches.
//
// K is permuted the same way on both sides of a product: lane t of a quad holds K values 8t .. 8t+7
// of a chunk of 32, so every operand is read 16 bytes at a time.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/grid_barrier.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/mixer/mixer_plan.h"

namespace tessera::cuda::device {

/// Compile-time view of a MixerTile.
template <size_t kIndex>
struct MixerConfig {
  static constexpr MixerTile kTile = kMixerTiles[kIndex];
  static constexpr int kThreads = kTile.warps * kWarp;
  static constexpr int kPasses = kMixerBlockRows / MixerTile::kRowTile;
  static constexpr int kDownRows = kTile.down_rows();
  static constexpr int kOutputs = kDownRows * MixerTile::kRowTile;  // of a pass, per block
  static constexpr int kDownUnits = kTile.slice() / kVectorBf16;    // 16-byte units of a row
  static constexpr int kUpUnits = kTile.rank / kVectorBf16;
};

struct MixerParams {
  const Bf16* normed;         // [rows, 4 * hidden]
  const Bf16* down;           // [rank, 4 * hidden]
  const Bf16* inject_weight;  // [4, 4 * hidden]; nullptr in the final mixer
  const Bf16* up;             // [4 * hidden, rank]
  Bf16* low;                  // [rows, rank], scratch: the down product after SiLU
  Bf16* mixed;                // [rows, hidden]
  float* inject;              // [rows, 4]
  uint32_t* counter;          // of the grid barrier
  int rows;
};

template <class Config>
struct MixerShared {
  static constexpr MixerTile kTile = Config::kTile;
  uint4 down[Config::kDownRows * Config::kDownUnits];
  uint4 up[kTile.up_rows() * Config::kUpUnits];
  union {
    /// Down products of the block's warps, [weight row][activation row].
    float partial[kTile.warps][Config::kOutputs];
    /// Up products handed to the warp with the other half of K: [tile][split of the writer][lane].
    float4 halves[kTile.up_tiles()][kTile.up_splits()][kWarp];
  };
  /// Filled by all ranks of the cluster: sums over their K slices for the rows this rank owns.
  float mailbox[Config::kPasses][MixerTile::kRanks][Config::kDownRows];
  /// One phase per block of rows: completes when the mailbox is full.
  Barrier arrived;
};

/// Where a unit of a row lies. Odd rows swap the halves of each 128 bytes, so that the two rows
/// that one phase of a 16-byte read touches use different banks.
template <int kUnits>
__device__ __forceinline__ int swizzled(int row, int unit) {
  constexpr int kHalf = kUnits % 8 == 0 ? 4 : 0;  // shorter rows do not collide
  return row * kUnits + (unit ^ ((row & 1) * kHalf));
}

/// Lane position in a 16 x 8 x 16 product (mma.cuh): group g and thread t of the group.
struct MixerLane {
  int warp, group, quad;
  __device__ __forceinline__ MixerLane()
      : warp(warp_id()), group(lane_id() / 4), quad(lane_id() % 4) {}
};

/// Two products over a chunk of 32: the weight rows g (low) and g + 8 (high), activation row g.
__device__ __forceinline__ void multiply_chunk(float (&even)[4], float (&odd)[4], const uint4& low,
                                               const uint4& high, const uint4& x) {
  mma_m16n8k16(even, {low.x, high.x, low.y, high.y}, {x.x, x.y});
  mma_m16n8k16(odd, {low.z, high.z, low.w, high.w}, {x.z, x.w});
}

/// Starts the copies of the block's rows of both matrices, in two groups.
template <class Config>
__device__ __forceinline__ void copy_weights(const MixerParams& params,
                                             MixerShared<Config>& shared) {
  constexpr MixerTile kTile = Config::kTile;
  const auto block = static_cast<int>(blockIdx.x);
  const int cluster = block / MixerTile::kRanks, rank = block % MixerTile::kRanks;
  const bool injects = params.inject_weight != nullptr && cluster < kTile.inject_clusters();
  const int down_rows = kTile.rank_rows() + (injects ? kTile.inject_rows() : 0);
  for (int index = static_cast<int>(threadIdx.x); index < down_rows * Config::kDownUnits;
       index += Config::kThreads) {
    const int row = index / Config::kDownUnits, unit = index % Config::kDownUnits;
    const bool is_inject = row >= kTile.rank_rows();
    const Bf16* matrix = is_inject ? params.inject_weight : params.down;
    const int matrix_row = is_inject ? cluster * kTile.inject_rows() + row - kTile.rank_rows()
                                     : cluster * kTile.rank_rows() + row;
    copy_async_16(&shared.down[swizzled<Config::kDownUnits>(row, unit)],
                  matrix + static_cast<size_t>(matrix_row) * kTile.wide() + rank * kTile.slice() +
                      unit * kVectorBf16);
  }
  commit_copies();
  for (int index = static_cast<int>(threadIdx.x); index < kTile.up_rows() * Config::kUpUnits;
       index += Config::kThreads) {
    const int row = index / Config::kUpUnits, unit = index % Config::kUpUnits;
    // Row m of a tile of 16: column m % 8 / 2, branch m % 2 + m / 8 * 2. So one lane of a product
    // holds two branches of a column and its neighbour group the other two.
    const int tile = row / MixerTile::kWeightTile, in_tile = row % MixerTile::kWeightTile;
    const int column = block * kTile.columns() + tile * MixerTile::kBranches + in_tile % 8 / 2;
    const int branch = in_tile % 2 + in_tile / 8 * 2;
    copy_async_16(&shared.up[swizzled<Config::kUpUnits>(row, unit)],
                  params.up + static_cast<size_t>(branch * kTile.hidden + column) * kTile.rank +
                      unit * kVectorBf16);
  }
  commit_copies();
}

/// The activations of one pass that a lane feeds into its warp's part of the down product.
template <class Config>
struct DownInput {
  uint4 x[Config::kTile.down_steps()];

  /// Rows from params.rows on count as zero.
  __device__ __forceinline__ void load(const MixerParams& params, const MixerLane& lane, int rank,
                                       int first_row) {
    constexpr MixerTile kTile = Config::kTile;
    const int row = first_row + lane.group;
    const auto* from =
        reinterpret_cast<const uint4*>(params.normed + row * kTile.wide() + rank * kTile.slice());
#pragma unroll
    for (int step = 0; step < kTile.down_steps(); ++step) {
      const int chunk = lane.warp * kTile.down_steps() + step;
      const bool valid = row < params.rows && chunk < kTile.down_chunks();
      x[step] = valid ? from[chunk * 4 + lane.quad] : uint4{};
    }
  }
};

/// One pass: this block's K slice of all its weight rows times 8 activation rows, to the ranks that
/// own the rows. All threads take part.
template <class Config>
__device__ __forceinline__ void down_pass(const MixerParams& params, MixerShared<Config>& shared,
                                          const MixerLane& lane, int rank,
                                          const DownInput<Config>& input, int first_row, int pass) {
  constexpr MixerTile kTile = Config::kTile;
  constexpr int kTiles = kTile.down_tiles(), kWeightTile = MixerTile::kWeightTile;
  constexpr int kRowTile = MixerTile::kRowTile;
  float even[kTiles][4] = {}, odd[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < kTile.down_steps(); ++step) {
    const int chunk = lane.warp * kTile.down_steps() + step;
    if (chunk >= kTile.down_chunks()) break;  // the same in the whole warp
    const int unit = chunk * 4 + lane.quad;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int low_row = tile * kWeightTile + lane.group, high_row = low_row + kWeightTile / 2;
      const uint4 low = low_row < Config::kDownRows
                            ? shared.down[swizzled<Config::kDownUnits>(low_row, unit)]
                            : uint4{};
      const uint4 high = high_row < Config::kDownRows
                             ? shared.down[swizzled<Config::kDownUnits>(high_row, unit)]
                             : uint4{};
      multiply_chunk(even[tile], odd[tile], low, high, input.x[step]);
    }
  }
  if (pass > 0) __syncthreads();  // the sums of the pass before have been read
  float* partial = shared.partial[lane.warp];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int low_row = tile * kWeightTile + lane.group, high_row = low_row + kWeightTile / 2;
    const int column = 2 * lane.quad;
    if (low_row < Config::kDownRows)
      *reinterpret_cast<float2*>(&partial[low_row * kRowTile + column]) = {
          even[tile][0] + odd[tile][0], even[tile][1] + odd[tile][1]};
    if (high_row < Config::kDownRows)
      *reinterpret_cast<float2*>(&partial[high_row * kRowTile + column]) = {
          even[tile][2] + odd[tile][2], even[tile][3] + odd[tile][3]};
  }
  __syncthreads();  // the products of all warps are there
  for (int output = static_cast<int>(threadIdx.x); output < Config::kOutputs;
       output += Config::kThreads) {
    const int owner = output % kRowTile, weight_row = output / kRowTile;
    if (first_row + owner >= params.rows) continue;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kTile.warps; ++warp) sum += shared.partial[warp][output];
    store_remote_counted(remote_address(&shared.mailbox[pass][rank][weight_row], owner), sum,
                         remote_address(&shared.arrived, owner));
  }
}

/// What arrived in the mailbox becomes rows of `low` and inject logits.
template <class Config>
__device__ __forceinline__ void finish_down(const MixerParams& params,
                                            const MixerShared<Config>& shared, int cluster,
                                            int rank, int first_row) {
  constexpr MixerTile kTile = Config::kTile;
  constexpr float kScale = 1.0F / MixerTile::kBranches;
  for (int index = static_cast<int>(threadIdx.x); index < Config::kPasses * Config::kDownRows;
       index += Config::kThreads) {
    const int pass = index / Config::kDownRows, weight_row = index % Config::kDownRows;
    const int row = first_row + pass * MixerTile::kRowTile + rank;
    if (row >= params.rows) continue;
    float sum = 0;
#pragma unroll
    for (int source = 0; source < MixerTile::kRanks; ++source)
      sum += shared.mailbox[pass][source][weight_row];
    sum *= kScale;
    if (weight_row < kTile.rank_rows())
      params.low[row * kTile.rank + cluster * kTile.rank_rows() + weight_row] =
          from_float<Bf16>(silu(sum));
    else if (params.inject_weight != nullptr && cluster < kTile.inject_clusters())
      params.inject[row * MixerTile::kBranches + cluster * kTile.inject_rows() + weight_row -
                    kTile.rank_rows()] = sum;
  }
}

/// What the ranks of the cluster will store into this block's mailbox for `rows` more rows.
template <class Config>
__device__ __forceinline__ uint32_t mailbox_bytes(int rows, int rank) {
  // Of each tile of 8 rows this block owns row `rank`.
  const int tiles =
      (min(rows, kMixerBlockRows) - rank + MixerTile::kRowTile - 1) / MixerTile::kRowTile;
  constexpr int kTileBytes =
      MixerTile::kRanks * Config::kDownRows * static_cast<int>(sizeof(float));
  return static_cast<uint32_t>(tiles * kTileBytes);
}

/// Down product of all rows: `low` and the inject logits are written when it returns. Full
/// mailboxes are announced by their barriers, empty ones by the cluster barrier.
template <class Config>
__device__ __forceinline__ void down_phase(const MixerParams& params, MixerShared<Config>& shared,
                                           const MixerLane& lane, int cluster, int rank) {
  constexpr int kRowTile = MixerTile::kRowTile;
  for (int block_row = 0; block_row < params.rows; block_row += kMixerBlockRows) {
    const int left = params.rows - block_row;
    DownInput<Config> now, next;
    now.load(params, lane, rank, block_row);
    if (left > kRowTile) next.load(params, lane, rank, block_row + kRowTile);
    if (block_row == 0) {
      wait_copies<1>();  // the down weights
      __syncthreads();   // of all threads
      allow_next_kernel();
    }
    if (threadIdx.x == 0) arrive_expect(&shared.arrived, mailbox_bytes<Config>(left, rank));
    cluster_wait();  // every rank has its barrier ready, or has emptied its mailbox
#pragma unroll 1
    for (int pass = 0; pass < Config::kPasses; pass += 2) {
      const int row = pass * kRowTile;
      if (row >= left) break;
      down_pass<Config>(params, shared, lane, rank, now, block_row + row, pass);
      if (row + 2 * kRowTile < left && pass + 2 < Config::kPasses)
        now.load(params, lane, rank, block_row + row + 2 * kRowTile);
      if (row + kRowTile >= left) break;
      down_pass<Config>(params, shared, lane, rank, next, block_row + row + kRowTile, pass + 1);
      if (row + 3 * kRowTile < left && pass + 2 < Config::kPasses)
        next.load(params, lane, rank, block_row + row + 3 * kRowTile);
    }
    wait_barrier(&shared.arrived, static_cast<uint32_t>(block_row / kMixerBlockRows & 1));
    finish_down<Config>(params, shared, cluster, rank, block_row);
    if (left > kMixerBlockRows) cluster_arrive();  // this mailbox is free again
  }
}

/// N at the places that a lane gates: rows 2t and 2t + 1 of a tile of 8, branches g % 2 and
/// g % 2 + 2. Packed, because registers are scarce here.
template <class Config>
struct GateInput {
  uint32_t branches[2];  // [row], the lower branch in the low half

  __device__ __forceinline__ void load(const MixerParams& params, const MixerLane& lane, int column,
                                       int first_row) {
    constexpr MixerTile kTile = Config::kTile;
    const auto* from =
        reinterpret_cast<const uint16_t*>(params.normed) + lane.group % 2 * kTile.hidden + column;
#pragma unroll
    for (int index = 0; index < 2; ++index) {
      const int row = first_row + 2 * lane.quad + index, at = row * kTile.wide();
      branches[index] = 0;
      if (row < params.rows) branches[index] = from[at] | from[at + 2 * kTile.hidden] << 16;
    }
  }
};

/// The warp's part of K of a weight tile times `low` of 8 rows.
template <class Config>
__device__ __forceinline__ void up_product(const MixerParams& params, const MixerLane& lane,
                                           const uint4 (&weights)[Config::kTile.up_steps()][2],
                                           int first_unit, int first_row, float (&sum)[4]) {
  constexpr MixerTile kTile = Config::kTile;
  const int row = first_row + lane.group;
  const auto* from = reinterpret_cast<const uint4*>(params.low + row * kTile.rank);
  uint4 x[kTile.up_steps()];
#pragma unroll
  for (int step = 0; step < kTile.up_steps(); ++step)
    x[step] = row < params.rows ? from[first_unit + step * 4] : uint4{};
  float odd[4] = {};
#pragma unroll
  for (float& value : sum) value = 0;
#pragma unroll
  for (int step = 0; step < kTile.up_steps(); ++step)
    multiply_chunk(sum, odd, weights[step][0], weights[step][1], x[step]);
#pragma unroll
  for (int index = 0; index < 4; ++index) sum[index] += odd[index];
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, kMixerBlocksPerSm) mixer(MixerParams params) {
#if __CUDA_ARCH__ >= 900
  constexpr MixerTile kTile = Config::kTile;
  constexpr int kSplits = kTile.up_splits(), kRowTile = MixerTile::kRowTile;
  extern __shared__ uint4 shared_memory[];
  auto& shared = *reinterpret_cast<MixerShared<Config>*>(shared_memory);
  const MixerLane lane;
  const int cluster = static_cast<int>(blockIdx.x) / MixerTile::kRanks, rank = cluster_rank();

  if (threadIdx.x == 0) {
    init_barrier(&shared.arrived, 1);
    fence_barrier_init();
  }
  cluster_arrive();  // this block's mailbox and barrier exist
  copy_weights<Config>(params, shared);
  wait_for_inputs();

  const int tile = lane.warp % kTile.up_tiles(), split = lane.warp / kTile.up_tiles();
  const int column =
      static_cast<int>(blockIdx.x) * kTile.columns() + tile * MixerTile::kBranches + lane.group / 2;
  down_phase<Config>(params, shared, lane, cluster, rank);

  wait_copies<0>();  // the up weights
  __syncthreads();   // of all threads; this block's part of `low` is written
  uint32_t target = 0;
  if (threadIdx.x == 0) target = grid_arrive(params.counter, kTile.blocks());
  const int first_unit = split * kTile.up_steps() * 4 + lane.quad;
  uint4 weights[kTile.up_steps()][2];
#pragma unroll
  for (int step = 0; step < kTile.up_steps(); ++step) {
    const int row = tile * MixerTile::kWeightTile + lane.group, unit = first_unit + step * 4;
    weights[step][0] = shared.up[swizzled<Config::kUpUnits>(row, unit)];
    weights[step][1] =
        shared.up[swizzled<Config::kUpUnits>(row + MixerTile::kWeightTile / 2, unit)];
  }
  GateInput<Config> gated;
  gated.load(params, lane, column, split * kRowTile);
  if (threadIdx.x == 0) grid_wait(params.counter, target);
  __syncthreads();  // `low` of all blocks is there

  for (int first_row = 0; first_row < params.rows; first_row += kSplits * kRowTile) {
    float sum[4];
    up_product<Config>(params, lane, weights, first_unit, first_row, sum);
    if constexpr (kSplits == 2) {
      // Each of the two warps of a tile finishes one of two row tiles: it needs the other's half.
      float second[4] = {};
      if (first_row + kRowTile < params.rows)
        up_product<Config>(params, lane, weights, first_unit, first_row + kRowTile, second);
      if (split == 1) {
#pragma unroll
        for (int index = 0; index < 4; ++index) {
          const float mine = second[index];
          second[index] = sum[index];
          sum[index] = mine;
        }
      }
      if (first_row > 0) __syncthreads();  // the halves of the step before have been read
      shared.halves[tile][split][lane_id()] = {second[0], second[1], second[2], second[3]};
      __syncthreads();  // both halves are there
      const float4 other = shared.halves[tile][1 - split][lane_id()];
      sum[0] += other.x, sum[1] += other.y, sum[2] += other.z, sum[3] += other.w;
    }
    float mean[2];
#pragma unroll
    for (int index = 0; index < 2; ++index) {
      const float2 n = unpack_bf16(gated.branches[index]);
      mean[index] = sigmoid(sum[index]) * n.x + sigmoid(sum[index + 2]) * n.y;
      mean[index] += __shfl_xor_sync(kAllLanes, mean[index], 4);  // the other two branches
    }
    const int odd = lane.group % 2, row = first_row + split * kRowTile + 2 * lane.quad + odd;
    constexpr float kShare = 1.0F / MixerTile::kBranches;
    if (row < params.rows)
      params.mixed[row * kTile.hidden + column] =
          from_float<Bf16>((odd != 0 ? mean[1] : mean[0]) * kShare);
    gated.load(params, lane, column, first_row + (kSplits + split) * kRowTile);
  }
#endif
}

}  // namespace tessera::cuda::device
