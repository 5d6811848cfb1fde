// SPDX-License-Identifier: Apache-2.0
// The whole mixer of decode rows in one launch. Every block asks for its share of both weight
// matrices before it looks at an activation: the down rows go to registers, the up rows to shared
// memory. After that the way of a row is: down product over a K slice, sum over the slices by the
// owner of an output (mixer_handover.cuh), SiLU, up product, gates, mean over the branches.
//
// K is permuted the same way on both sides of a product: lane t of a quad holds K values 8t .. 8t+7
// of a chunk of 32, so every operand is read 16 bytes at a time.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/fast_sigmoid.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/mixer/mixer_handover.cuh"
#include "cuda/mixer/mixer_plan.h"

namespace tessera::cuda::device {

/// Rows whose products a team finishes together: two tiles in flight hide each other's latency.
inline constexpr int kMixerBatchRows = 2 * MixerTile::kRowTile;

/// 16-byte units from one row to the next in shared memory: neighbouring rows, which one phase of a
/// 16-byte read touches, must differ by half of the banks.
constexpr int mixer_stride(int units) { return units % 8 == 0 ? units + 4 : units; }

template <class Config>
struct MixerShared {
  static constexpr MixerTile kTile = Config::kTile;
  static constexpr int kUpStride = mixer_stride(Config::kLowUnits);
  static constexpr int kSliceUnits = kTile.slice() / MixerTile::kUnit;
  static constexpr int kSliceStride = mixer_stride(kSliceUnits);
  static constexpr int kRowUnits = kUpStride > kSliceStride ? kUpStride : kSliceStride;
  static constexpr int kSumStride = MixerTile::kWeightTile + 4;  // writes meet different banks

  uint4 up[kTile.up_rows() * kUpStride];
  uint4 inject[kTile.inject_rows() * kSliceUnits];
  /// Activations of two rounds: K slices of N, later `low`.
  uint4 rows[2][kMixerRoundRows * kRowUnits];
  /// What the warps of a weight tile add up, [activation row][weight row].
  float sums[kTile.tiles()][kTile.splits][kMixerBatchRows * kSumStride];
  Barrier up_ready, inject_ready;
};

/// Who this thread is: group g and thread t of the group in a 16 x 8 x 16 product (mma.cuh); the
/// warps of one weight tile are a team.
template <class Config>
struct MixerLane {
  int group = lane_id() / 4, quad = lane_id() % 4;
  int tile = warp_id() / Config::kTile.splits, split = warp_id() % Config::kTile.splits;
};

/// Two products over a chunk of 32: the weight rows g (low) and g + 8 (high), activation row g.
__device__ __forceinline__ void multiply_chunk(float (&even)[4], float (&odd)[4], const uint4& low,
                                               const uint4& high, const uint4& x) {
  mma_m16n8k16(even, {low.x, high.x, low.y, high.y}, {x.x, x.y});
  mma_m16n8k16(odd, {low.z, high.z, low.w, high.w}, {x.z, x.w});
}

/// The warp's part of K of a weight tile times kTiles x 8 rows that lie at `rows`.
template <int kTiles, int kSteps>
__device__ __forceinline__ void multiply_tiles(const uint4 (&weights)[kSteps][2], const uint4* rows,
                                               int stride, float (&sums)[2][4]) {
  float odd[kTiles][4] = {};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (float& value : sums[tile]) value = 0;
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      multiply_chunk(sums[tile], odd[tile], weights[step][0], weights[step][1],
                     rows[tile * MixerTile::kRowTile * stride + step * 4]);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int index = 0; index < 4; ++index) sums[tile][index] += odd[tile][index];
}

/// Products of `count` (1..16) rows that lie from `first` on in shared memory. All threads take
/// part: `use(item, row, quad, sums)` gets the sums of weight rows 4 quad .. 4 quad + 3 of the
/// team's tile, `item` of its thread.
template <class Config, int kStride, int kSteps, class Use>
__device__ __forceinline__ void multiply_batch(MixerShared<Config>& shared,
                                               const MixerLane<Config>& lane,
                                               const uint4 (&weights)[kSteps][2],
                                               const uint4* first, int count, Use&& use) {
  constexpr int kSumStride = MixerShared<Config>::kSumStride, kRowTile = MixerTile::kRowTile;
  float sums[2][4];
  const uint4* rows = first + lane.group * kStride + lane.split * kSteps * 4 + lane.quad;
  const bool both = count > kRowTile;
  if (both)
    multiply_tiles<2>(weights, rows, kStride, sums);
  else
    multiply_tiles<1>(weights, rows, kStride, sums);
  float* mine = shared.sums[lane.tile][lane.split];
  __syncthreads();  // the sums of the batch before have been read
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    if (tile == 1 && !both) break;
    float* to = mine + (tile * kRowTile + 2 * lane.quad) * kSumStride + lane.group;
    to[0] = sums[tile][0];
    to[kSumStride] = sums[tile][1];
    to[kRowTile] = sums[tile][2];
    to[kSumStride + kRowTile] = sums[tile][3];
  }
  __syncthreads();  // the sums of all parts of K are there
  constexpr int kQuads = MixerTile::kWeightTile / 4, kItems = kMixerBatchRows * kQuads;
#pragma unroll
  for (int item = 0; item < kItems / Config::kTeam; ++item) {
    const int place = static_cast<int>(threadIdx.x) % Config::kTeam + item * Config::kTeam;
    const int row = place / kQuads, quad = place % kQuads;
    if (row >= count) continue;
    const int at = row * kSumStride + 4 * quad;
    float4 total = *reinterpret_cast<const float4*>(&shared.sums[lane.tile][0][at]);
#pragma unroll
    for (int split = 1; split < Config::kTile.splits; ++split) {
      const float4 part = *reinterpret_cast<const float4*>(&shared.sums[lane.tile][split][at]);
      total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
    }
    use(item, row, quad, total);
  }
}

/// The warp's weight rows of the down product, in the order of its products.
template <class Config>
__device__ __forceinline__ void load_down(const MixerParams& params, const MixerLane<Config>& lane,
                                          int group, int slice,
                                          uint4 (&weights)[Config::kTile.down_steps()][2]) {
  constexpr MixerTile kTile = Config::kTile;
  const int row = group * kTile.rank_rows() + lane.tile * MixerTile::kWeightTile + lane.group;
  const int unit = lane.split * kTile.down_steps() * 4 + lane.quad;
  const Bf16* from = params.down + static_cast<size_t>(row) * kTile.wide() + slice * kTile.slice() +
                     unit * MixerTile::kUnit;
  constexpr size_t kUpper = size_t{MixerTile::kWeightTile / 2} * kTile.wide();
#pragma unroll
  for (int step = 0; step < kTile.down_steps(); ++step) {
    weights[step][0] = load_streaming(from + step * MixerTile::kChunk);
    weights[step][1] = load_streaming(from + kUpper + step * MixerTile::kChunk);
  }
}

/// Starts the copies of the block's up and inject rows. Row m of an up tile is column m / 4, branch
/// m % 4: the four gates of a value are neighbours.
template <class Config>
__device__ __forceinline__ void copy_weights(const MixerParams& params, MixerShared<Config>& shared,
                                             int group, int slice) {
  constexpr MixerTile kTile = Config::kTile;
  constexpr int kInjectRows = kTile.inject_rows();
  constexpr uint32_t kUpBytes = kTile.rank * sizeof(Bf16),
                     kInjectBytes = kTile.slice() * sizeof(Bf16);
  if (threadIdx.x == 0) {
    init_barrier(&shared.up_ready, 1);
    init_barrier(&shared.inject_ready, 1);
    fence_barrier_init();
  }
  __syncthreads();  // the barriers exist
  if (threadIdx.x == 0) {
    arrive_expect(&shared.up_ready, kTile.up_rows() * kUpBytes);
    if (params.inject_weight != nullptr)
      arrive_expect(&shared.inject_ready, kInjectRows * kInjectBytes);
  }
  const auto thread = static_cast<int>(threadIdx.x);
  if (params.inject_weight != nullptr && thread < kInjectRows)
    copy_bulk(shared.inject + thread * MixerShared<Config>::kSliceUnits,
              params.inject_weight +
                  static_cast<size_t>(group * kInjectRows + thread) * kTile.wide() +
                  slice * kTile.slice(),
              kInjectBytes, &shared.inject_ready);
  for (int row = thread; row < kTile.up_rows(); row += Config::kThreads) {
    const int column = static_cast<int>(blockIdx.x) * kTile.columns() + row / MixerTile::kBranches;
    const int branch = row % MixerTile::kBranches;
    copy_bulk(shared.up + row * MixerShared<Config>::kUpStride,
              params.up + static_cast<size_t>(branch * kTile.hidden + column) * kTile.rank,
              kUpBytes, &shared.up_ready);
  }
}

/// Starts the copies of the block's K slice of one round of rows: one group of copies.
template <class Config>
__device__ __forceinline__ void copy_rows(const MixerParams& params, uint4* to, int slice,
                                          int first_row) {
  constexpr MixerTile kTile = Config::kTile;
  constexpr int kUnits = MixerShared<Config>::kSliceUnits;
  constexpr int kRowsAtOnce = Config::kThreads / kUnits;
  static_assert(kRowsAtOnce * kUnits == Config::kThreads);
  const int count = min(params.rows - first_row, kMixerRoundRows);
  const int first = static_cast<int>(threadIdx.x) / kUnits;
  const int unit = static_cast<int>(threadIdx.x) % kUnits;
  const Bf16* from = params.normed + static_cast<size_t>(first_row) * kTile.wide() +
                     slice * kTile.slice() + unit * MixerTile::kUnit;
#pragma unroll
  for (int index = 0; index < kMixerRoundRows / kRowsAtOnce; ++index) {
    const int row = first + index * kRowsAtOnce;
    if (row < count)
      copy_async_16(to + row * MixerShared<Config>::kSliceStride + unit, from + row * kTile.wide());
  }
  commit_copies();
}

/// `sum` and the products of two packed pairs.
__device__ __forceinline__ float add_pair(float sum, uint32_t x, uint32_t weight) {
  const float2 a = unpack_bf16(x), b = unpack_bf16(weight);
  sum += a.x * b.x;
  return sum + a.y * b.y;
}

/// Inject logits over the K slice for `count` rows in shared memory: 8 lanes per row. No loop is
/// unrolled, for the weights of the down product hold most registers.
template <class Config>
__device__ __forceinline__ void publish_inject(const MixerParams& params,
                                               const MixerShared<Config>& shared, const uint4* rows,
                                               int group, int slice, int first_row, int count) {
  constexpr MixerTile kTile = Config::kTile;
  constexpr int kLanes = 8, kWarpRows = kWarp / kLanes;
  constexpr int kUnits = MixerShared<Config>::kSliceUnits;
  const int part = lane_id() % kLanes;
#pragma unroll 1
  for (int warp_row = warp_id() * kWarpRows; warp_row < count;
       warp_row += kTile.warps() * kWarpRows) {
    const int row = warp_row + lane_id() / kLanes;  // below kMixerRoundRows, maybe not below count
#pragma unroll 1
    for (int branch = 0; branch < kTile.inject_rows(); ++branch) {
      float sum = 0;
#pragma unroll 1
      for (int unit = part; unit < kUnits; unit += kLanes) {
        const uint4 x = rows[row * MixerShared<Config>::kSliceStride + unit];
        const uint4 weight = shared.inject[branch * kUnits + unit];
        sum = add_pair(add_pair(sum, x.x, weight.x), x.y, weight.y);
        sum = add_pair(add_pair(sum, x.z, weight.z), x.w, weight.w);
      }
      sum = warp_sum<kLanes>(sum);
      if (part == 0 && row < count)
        store_handover_word(inject_partial_at<Config>(params, first_row + row, slice) +
                                group * kTile.inject_rows() + branch,
                            handover_word(sum));
    }
  }
}

/// Down product over the block's K slice: its sums are published when this returns.
template <class Config>
__device__ __forceinline__ void down_phase(const MixerParams& params, MixerShared<Config>& shared,
                                           const MixerLane<Config>& lane, int group, int slice,
                                           const uint4 (&weights)[Config::kTile.down_steps()][2]) {
  constexpr MixerTile kTile = Config::kTile;
  constexpr int kStride = MixerShared<Config>::kSliceStride;
  int buffer = 0;
  for (int first_row = 0; first_row < params.rows; first_row += kMixerRoundRows, buffer ^= 1) {
    wait_copies<0>();  // this thread's part of the round
    __syncthreads();   // of all threads; the round before, in the other buffer, has been read
    if (first_row + kMixerRoundRows < params.rows)
      copy_rows<Config>(params, shared.rows[buffer ^ 1], slice, first_row + kMixerRoundRows);
    if (first_row == 0) allow_next_kernel();
    const int count = min(params.rows - first_row, kMixerRoundRows);
#pragma unroll 1
    for (int batch = 0; batch < count; batch += kMixerBatchRows)
      multiply_batch<Config, kStride>(
          shared, lane, weights, shared.rows[buffer] + batch * kStride,
          min(count - batch, kMixerBatchRows), [&](int, int row, int quad, const float4& sums) {
            constexpr int kQuads = MixerTile::kUnit / 4;
            const int output = group * kTile.rank_rows() + lane.tile * MixerTile::kWeightTile;
            const int unit = (first_row + batch + row) * Config::kLowUnits +
                             output / MixerTile::kUnit + quad / kQuads;
            store_handover(partial_at<Config>(params, unit, slice) + quad % kQuads * 4,
                           {handover_word(sums.x), handover_word(sums.y), handover_word(sums.z),
                            handover_word(sums.w)});
          });
    if (params.inject == nullptr) continue;
    if (first_row == 0) wait_barrier(&shared.inject_ready, 0);
    publish_inject<Config>(params, shared, shared.rows[buffer], group, slice, first_row, count);
  }
}

/// N at the places of a round that a thread gates, two branches in a word.
template <class Config>
struct GateInput {
  static constexpr int kItems =
      kMixerBatchRows * MixerTile::kWeightTile / 4 / Config::kTeam;  // of a batch
  static constexpr int kBatches = kMixerRoundRows / kMixerBatchRows;
  uint32_t branches[kBatches][kItems][2];

  __device__ __forceinline__ void load(const MixerParams& params, const MixerLane<Config>& lane,
                                       int first_row) {
    constexpr MixerTile kTile = Config::kTile;
    const auto* from = reinterpret_cast<const uint16_t*>(params.normed) +
                       static_cast<int>(blockIdx.x) * kTile.columns() + lane.tile * 4;
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch)
#pragma unroll
      for (int item = 0; item < kItems; ++item) {
        const int place = static_cast<int>(threadIdx.x) % Config::kTeam + item * Config::kTeam;
        const int row = first_row + batch * kMixerBatchRows + place / 4;
        const uint16_t* at = from + row * kTile.wide() + place % 4;
#pragma unroll
        for (int pair = 0; pair < 2; ++pair, at += 2 * kTile.hidden) {
          branches[batch][item][pair] = 0;
          if (row < params.rows) branches[batch][item][pair] = at[0] | at[kTile.hidden] << 16;
        }
      }
  }
};

/// Up product of all rows, gates and mean: `mixed` is written when this returns.
template <class Config>
__device__ __forceinline__ void up_phase(const MixerParams& params, MixerShared<Config>& shared,
                                         const MixerLane<Config>& lane, const Bf16* low,
                                         GateInput<Config>& gated) {
  constexpr MixerTile kTile = Config::kTile;
  constexpr int kStride = MixerShared<Config>::kUpStride, kSteps = kTile.up_steps();
  uint4 weights[kSteps][2];
  const uint4* from = shared.up + (lane.tile * MixerTile::kWeightTile + lane.group) * kStride +
                      lane.split * kSteps * 4 + lane.quad;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    weights[step][0] = from[step * 4];
    weights[step][1] = from[MixerTile::kWeightTile / 2 * kStride + step * 4];
  }
  LowPieces<Config> pieces;
  pieces.load(low, 0, params.rows);
  int buffer = 0;
  for (int first_row = 0; first_row < params.rows; first_row += kMixerRoundRows, buffer ^= 1) {
    pieces.wait(low, first_row, params.rows);
    uint4* rows = shared.rows[buffer];
#pragma unroll
    for (int index = 0; index < LowPieces<Config>::kCount; ++index)
      rows[(pieces.row + index * LowPieces<Config>::kRowsAtOnce) * kStride + pieces.unit] =
          pieces.words[index];
    __syncthreads();  // the round is there; two rounds ago, in this buffer, had been read before
#pragma unroll
    for (int batch = 0; batch < GateInput<Config>::kBatches; ++batch) {
      const int batch_row = first_row + batch * kMixerBatchRows;
      if (batch_row >= params.rows) break;  // the same in the whole block
      multiply_batch<Config, kStride>(
          shared, lane, weights, rows + batch * kMixerBatchRows * kStride,
          min(params.rows - batch_row, kMixerBatchRows),
          [&](int item, int row, int quad, const float4& sums) {
            const float2 low_pair = unpack_bf16(gated.branches[batch][item][0]);
            const float2 high_pair = unpack_bf16(gated.branches[batch][item][1]);
            const float total =
                fast_sigmoid(sums.x) * low_pair.x + fast_sigmoid(sums.y) * low_pair.y +
                fast_sigmoid(sums.z) * high_pair.x + fast_sigmoid(sums.w) * high_pair.y;
            const int column =
                static_cast<int>(blockIdx.x) * kTile.columns() + lane.tile * 4 + quad;
            constexpr float kShare = 1.0F / MixerTile::kBranches;
            params.mixed[(batch_row + row) * kTile.hidden + column] =
                from_float<Bf16>(total * kShare);
          });
    }
    // Not earlier: registers are scarce while the products run.
    pieces.load(low, first_row + kMixerRoundRows, params.rows);
    gated.load(params, lane, first_row + kMixerRoundRows);
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, kMixerBlocksPerSm)
    mixer(const __grid_constant__ MixerParams params) {
#if __CUDA_ARCH__ >= 900
  constexpr MixerTile kTile = Config::kTile;
  extern __shared__ uint4 shared_memory[];
  auto& shared = *reinterpret_cast<MixerShared<Config>*>(shared_memory);
  const MixerLane<Config> lane;
  const int group = static_cast<int>(blockIdx.x) / kTile.slices;
  const int slice = static_cast<int>(blockIdx.x) % kTile.slices;

  uint4 weights[kTile.down_steps()][2];
  load_down<Config>(params, lane, group, slice, weights);
  copy_weights<Config>(params, shared, group, slice);
  wait_for_inputs();

  copy_rows<Config>(params, shared.rows[0], slice, 0);
  down_phase<Config>(params, shared, lane, group, slice, weights);
  const uint32_t launch = load_handover_word(params.launches + blockIdx.x);
  if (params.inject != nullptr) own_inject_totals<Config>(params);
  own_down_totals<Config>(params, launch);
  GateInput<Config> gated;
  gated.load(params, lane, 0);
  empty_other_low<Config>(params, launch);
  wait_barrier(&shared.up_ready, 0);
  // The rows of the down product have been read: `low` takes their place. All have the number of
  // the launch: it may change.
  __syncthreads();
  if (threadIdx.x == 0) store_handover_word(params.launches + blockIdx.x, launch + 1);
  up_phase<Config>(params, shared, lane, low_buffer<Config>(params, launch), gated);
#endif
}

}  // namespace tessera::cuda::device
