// SPDX-License-Identifier: Apache-2.0
// The mixer of prompts around the library's down product, in two kernels. finish_down reads its
// sums and N: inject logits, and SiLU of the sums as BF16 tiles. gated_up multiplies these tiles on
// warpgroup tensor cores and applies gates and mean to the sums in registers: gates never reach
// memory.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/fast_sigmoid.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/mixer/mixer_plan.h"

namespace tessera::cuda::device {

struct FinishDownArgs {
  const Bf16* normed = nullptr;         // [rows, 4 * hidden]
  const Bf16* inject_weight = nullptr;  // [4, 4 * hidden]; nullptr in the final mixer
  const float* sums = nullptr;          // [rows, rank] down product
  std::byte* low = nullptr;             // tiles, see low_tile
  float* inject = nullptr;              // [rows, 4]
  int rows = 0;
  int wide = 0;
};

struct GatedUpArgs {
  const Bf16* up = nullptr;        // [4 * hidden, rank]
  const std::byte* low = nullptr;  // tiles, see low_tile
  const Bf16* normed = nullptr;    // [rows, 4, hidden]
  Bf16* mixed = nullptr;           // [rows, hidden]
  int rows = 0;
  int hidden = 0;
};

/// Byte offset of the 64 K values `step` of 64 rows in `low`: one operand tile as wgmma reads it,
/// so that one contiguous copy brings it to shared memory.
__device__ __forceinline__ size_t low_tile(int row_tile, int step) {
  return static_cast<size_t>(row_tile * PromptMixer::kSteps + step) * PromptMixer::kTileBytes;
}

/// A block has 16 rows, one tensor core tile; each warp has an equal part of K of the inject
/// product. The permutation of K is that of mixer_kernel.cuh.
template <class Config>
__global__ void __launch_bounds__(Config::kFinishThreads, Config::kFinishBlocksPerSm)
    finish_down(const __grid_constant__ FinishDownArgs args) {
  constexpr int kRows = Config::kFinishRows, kBranches = Config::kBranches;
  constexpr int kWarps = Config::kFinishThreads / kWarp, kLoads = Config::kFinishLoads;
  constexpr int kPieces = Config::kRank / kVectorBf16, kStepPieces = Config::kStepK / kVectorBf16;
  constexpr float kScale = 1.0F / kBranches;
  __shared__ float partial[kWarps][kRows][kBranches];
  allow_next_kernel();
  wait_for_inputs();
  const int first_row = static_cast<int>(blockIdx.x) * kRows;

  for (int index = static_cast<int>(threadIdx.x); index < kRows * kPieces;
       index += Config::kFinishThreads) {
    const int row = first_row + index / kPieces, piece = index % kPieces;
    if (row >= args.rows) break;
    const auto* from = reinterpret_cast<const float4*>(
        args.sums + static_cast<size_t>(row) * Config::kRank + piece * kVectorBf16);
    const float4 front = from[0], back = from[1];
    const float values[kVectorBf16] = {fast_silu(front.x * kScale), fast_silu(front.y * kScale),
                                       fast_silu(front.z * kScale), fast_silu(front.w * kScale),
                                       fast_silu(back.x * kScale),  fast_silu(back.y * kScale),
                                       fast_silu(back.z * kScale),  fast_silu(back.w * kScale)};
    std::byte* tile = args.low + low_tile(row / Config::kTileRows, piece / kStepPieces);
    *reinterpret_cast<uint4*>(
        tile + swizzled_offset(row % Config::kTileRows, piece % kStepPieces)) = pack_bf16x8(values);
  }
  if (args.inject_weight == nullptr) return;

  const int group = lane_id() / 4, quad = lane_id() % 4;
  const int chunks = args.wide / Config::kChunk / kWarps;  // of a warp, a multiple of kLoads
  const auto row_units = static_cast<size_t>(args.wide / kVectorBf16);
  const auto first_unit = static_cast<size_t>(warp_id() * chunks * 4 + quad);
  // Rows past the end repeat the last one.
  const auto low_row = static_cast<size_t>(min(first_row + group, args.rows - 1));
  const auto high_row = static_cast<size_t>(min(first_row + group + kRows / 2, args.rows - 1));
  const uint4* low = reinterpret_cast<const uint4*>(args.normed) + low_row * row_units + first_unit;
  const uint4* high =
      reinterpret_cast<const uint4*>(args.normed) + high_row * row_units + first_unit;
  const bool weighs = group < kBranches;  // columns 4..7 of the product are zero
  const uint4* weight = reinterpret_cast<const uint4*>(args.inject_weight) +
                        static_cast<size_t>(group % kBranches) * row_units + first_unit;
  float even[4] = {}, odd[4] = {};
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; chunk += kLoads) {
    uint4 x[kLoads][2], w[kLoads];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int at = (chunk + load) * 4;
      x[load][0] = low[at];
      x[load][1] = high[at];
      w[load] = weighs ? weight[at] : uint4{};
    }
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const uint4 a = x[load][0], b = x[load][1];
      mma_m16n8k16(even, {a.x, b.x, a.y, b.y}, {w[load].x, w[load].y});
      mma_m16n8k16(odd, {a.z, b.z, a.w, b.w}, {w[load].z, w[load].w});
    }
  }
  if (2 * quad < kBranches) {
    auto* to = partial[warp_id()];
    *reinterpret_cast<float2*>(&to[group][2 * quad]) = {even[0] + odd[0], even[1] + odd[1]};
    *reinterpret_cast<float2*>(&to[group + kRows / 2][2 * quad]) = {even[2] + odd[2],
                                                                    even[3] + odd[3]};
  }
  __syncthreads();  // the sums of all warps are there
  const int row = static_cast<int>(threadIdx.x) / kBranches, branch = threadIdx.x % kBranches;
  if (row >= kRows || first_row + row >= args.rows) return;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += partial[warp][row][branch];
  args.inject[(first_row + row) * kBranches + branch] = sum * kScale;
}

template <class Config>
struct GatedUpShared {
  /// The block's weight rows, once for all row tiles; in a warpgroup's tile, row n is branch n / 32
  /// of column up_column(n).
  alignas(1024)
      std::byte weights[Config::kGroups][Config::kSteps][Config::kGroupWeights * kSwizzleBytes];
  alignas(1024) std::byte low[Config::kStages][Config::kTileBytes];
  Barrier full[Config::kStages];   // filled by the copy engine
  Barrier empty[Config::kStages];  // read by every consumer warp
  Barrier turn[Config::kGroups];   // the other warpgroup has issued its products
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Column of 32 that row n of a weight tile holds: a thread's sums of a branch, 2t and 2t + 1 of
/// every 8, become eight neighbouring columns.
__device__ __forceinline__ int up_column(int n) { return n % 8 / 2 * 8 + n % 32 / 8 * 2 + n % 2; }

template <class Config>
__device__ __forceinline__ void copy_up_weights(const GatedUpArgs& args,
                                                GatedUpShared<Config>& shared) {
  constexpr int kPieces = Config::kRank / kVectorBf16, kStepPieces = Config::kStepK / kVectorBf16;
  const int first_column = static_cast<int>(blockIdx.x) * Config::kColumns;
  for (int index = static_cast<int>(threadIdx.x);
       index < Config::kGroups * Config::kGroupWeights * kPieces; index += Config::kUpThreads) {
    const int row = index / kPieces, piece = index % kPieces;
    const int group = row / Config::kGroupWeights, n = row % Config::kGroupWeights;
    const int column = first_column + group * Config::kGroupColumns + up_column(n);
    const int weight_row = n / Config::kGroupColumns * args.hidden + column;
    copy_async_16(
        shared.weights[group][piece / kStepPieces] + swizzled_offset(n, piece % kStepPieces),
        args.up + static_cast<size_t>(weight_row) * Config::kRank + piece * kVectorBf16);
  }
  commit_copies();
  wait_copies<0>();
  fence_async_proxy();  // wgmma reads what the copies of this thread wrote
}

/// Position in the ring of tiles; producer and consumers walk it alike.
template <class Config>
struct LowCursor {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == Config::kStages) stage = 0, phase ^= 1;
  }
};

/// One thread: brings `low` of the block's row tiles, one step of K after the other.
template <class Config>
__device__ __forceinline__ void produce_low(const GatedUpArgs& args, GatedUpShared<Config>& shared,
                                            int row_tiles) {
  LowCursor<Config> cursor;
  for (int tile = static_cast<int>(blockIdx.y); tile < row_tiles;
       tile += static_cast<int>(gridDim.y))
    for (int step = 0; step < Config::kSteps; ++step, cursor.advance()) {
      wait_barrier(&shared.empty[cursor.stage], cursor.phase ^ 1);
      arrive_expect(&shared.full[cursor.stage], Config::kTileBytes);
      copy_bulk(shared.low[cursor.stage], args.low + low_tile(tile, step), Config::kTileBytes,
                &shared.full[cursor.stage]);
    }
}

/// A warpgroup: 64 rows times 32 columns of all branches. The two take turns, so that one gates
/// while the other multiplies.
template <class Config>
class GatedUpConsumer {
 public:
  using Shared = GatedUpShared<Config>;

  __device__ __forceinline__ GatedUpConsumer(const GatedUpArgs& args, Shared& shared, int group)
      : args_(args),
        shared_(shared),
        group_(group),
        row_(warp_id() % (kWarpgroup / kWarp) * 16 + lane_id() / 4),
        column_(static_cast<int>(blockIdx.x) * Config::kColumns + group * Config::kGroupColumns +
                lane_id() % 4 * kVectorBf16) {}

  __device__ __forceinline__ void run(int row_tiles) {
    load_normed(static_cast<int>(blockIdx.y));
    uint32_t turn = group_ == 0 ? 1 : 0;  // group 0 need not wait for its first turn
    for (int tile = static_cast<int>(blockIdx.y); tile < row_tiles;
         tile += static_cast<int>(gridDim.y)) {
      float sums[kSums] = {};
      wait_barrier(&shared_.turn[group_], turn);
      turn ^= 1;
      multiply(sums);
      store(tile, sums);
      // Asked for before the turn: under way while the other warpgroup multiplies.
      load_normed(tile + static_cast<int>(gridDim.y));
    }
  }

 private:
  static constexpr int kBranches = Config::kBranches;
  static constexpr int kSums = Config::kGroupWeights / 2;
  static constexpr int kSubsteps = Config::kStepK / 16;

  __device__ __forceinline__ void multiply(float (&sums)[kSums]) {
    int previous = 0;
#pragma unroll
    for (int step = 0; step < Config::kSteps; ++step) {
      wait_barrier(&shared_.full[cursor_.stage], cursor_.phase);
      const uint64_t a = tile_descriptor(shared_.low[cursor_.stage]);
      const uint64_t b = tile_descriptor(shared_.weights[group_][step]);
      pin_registers(sums);
      begin_products();
#pragma unroll
      for (int substep = 0; substep < kSubsteps; ++substep)
        multiply_tiles<Config::kGroupWeights>(sums, a + substep * kDescriptorK16,
                                              b + substep * kDescriptorK16);
      commit_products();
      pin_registers(sums);
      if (step > 0) {
        wait_products<1>();  // the stage before has been read
        release(previous);
      }
      previous = cursor_.stage;
      cursor_.advance();
    }
    if (lane_id() == 0) arrive(&shared_.turn[1 - group_]);
    wait_products<0>();
    pin_registers(sums);
    release(previous);
  }

  __device__ __forceinline__ void release(int stage) {
    if (lane_id() == 0) arrive(&shared_.empty[stage]);
  }

  /// N of the places that this thread gates in a row tile. Rows past the end repeat the last one.
  __device__ __forceinline__ void load_normed(int tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(tile * Config::kTileRows + row_ + half * 8, args_.rows - 1);
      const Bf16* from =
          args_.normed + static_cast<size_t>(row) * (kBranches * args_.hidden) + column_;
#pragma unroll
      for (int branch = 0; branch < kBranches; ++branch)
        normed_[half][branch] = *reinterpret_cast<const uint4*>(from + branch * args_.hidden);
    }
  }

  __device__ __forceinline__ void store(int tile, const float (&sums)[kSums]) {
    constexpr int kTiles = Config::kGroupColumns / 8;  // tiles of 8 weight rows in a branch
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total[kVectorBf16] = {};
#pragma unroll
      for (int branch = 0; branch < kBranches; ++branch) {
        float n[kVectorBf16];
        unpack_bf16x8(normed_[half][branch], n);
#pragma unroll
        for (int lane = 0; lane < kVectorBf16; ++lane)
          total[lane] +=
              fast_sigmoid(sums[(branch * kTiles + lane / 2) * 4 + half * 2 + lane % 2]) * n[lane];
      }
      constexpr float kShare = 1.0F / kBranches;
#pragma unroll
      for (float& value : total) value *= kShare;
      const int row = tile * Config::kTileRows + row_ + half * 8;
      if (row < args_.rows)
        *reinterpret_cast<uint4*>(args_.mixed + static_cast<size_t>(row) * args_.hidden + column_) =
            pack_bf16x8(total);
    }
  }

  const GatedUpArgs& args_;
  Shared& shared_;
  int group_;
  int row_;     // of this thread in a row tile; it has row_ + 8 as well
  int column_;  // the first of its eight
  LowCursor<Config> cursor_;
  uint4 normed_[2][kBranches];
};

#endif

/// Block (x, y): kColumns columns, whose weights stay in shared memory, of every gridDim.y-th row
/// tile. Two consumer warpgroups and one producer warp.
template <class Config>
__global__ void __launch_bounds__(Config::kUpThreads, 1)
    gated_up(const __grid_constant__ GatedUpArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kGroupWarps = kWarpgroup / kWarp;
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<GatedUpShared<Config>*>(memory);
  allow_next_kernel();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(&shared.full[stage], 1);
      init_barrier(&shared.empty[stage], Config::kGroups * kGroupWarps);
    }
    for (Barrier& turn : shared.turn) init_barrier(&turn, kGroupWarps);
    fence_barrier_init();
  }
  copy_up_weights<Config>(args, shared);
  __syncthreads();  // barriers and the weights of all threads are there
  wait_for_inputs();
  const int row_tiles = (args.rows + Config::kTileRows - 1) / Config::kTileRows;
  const int role = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (role < Config::kGroups)
    GatedUpConsumer<Config>(args, shared, role).run(row_tiles);
  else if (lane_id() == 0)
    produce_low<Config>(args, shared, row_tiles);
#endif
}

}  // namespace tessera::cuda::device
