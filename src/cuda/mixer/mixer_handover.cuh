// SPDX-License-Identifier: Apache-2.0
// How the blocks of the one-launch mixer exchange sums. Each block publishes the sums over its K
// slice; for every 8 outputs of a row one warp of the device owns their total: it waits for all
// slices, adds them in a fixed order, puts zeros back and publishes the result for all blocks.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/fast_sigmoid.cuh"
#include "cuda/device/handover.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/mixer/mixer_plan.h"

namespace tessera::cuda::device {

/// Compile-time view of a MixerTile.
template <size_t kIndex>
struct MixerConfig {
  static constexpr MixerTile kTile = kMixerTiles[kIndex];
  static constexpr int kThreads = kTile.warps() * kWarp;
  static constexpr int kTeam = kTile.splits * kWarp;  // threads of the warps of one weight tile
  static constexpr int kLowUnits = kTile.low_units();
};

struct MixerParams {
  const Bf16* normed;         // [rows, 4 * hidden]
  const Bf16* down;           // [rank, 4 * hidden]
  const Bf16* inject_weight;  // [4, 4 * hidden]; nullptr in the final mixer
  const Bf16* up;             // [4 * hidden, rank]
  Bf16* mixed;                // [rows, hidden]
  float* inject;              // [rows, 4]
  uint32_t* launches;         // the rest: MixerMemory
  Bf16* low;
  float* partial;
  float* inject_partial;
  int rows;
};

/// Adds kCount values per lane (a power of two, up to 16) over the lanes of the warp, always in the
/// same order. Lane l gets the total of value l / (32 / kCount).
template <int kCount>
__device__ __forceinline__ float transposed_warp_sum(float (&values)[kCount]) {
  int distance = kWarp / 2;
#pragma unroll
  for (int left = kCount; left > 1; left /= 2, distance /= 2) {
    const bool upper = (lane_id() & distance) != 0;
#pragma unroll
    for (int index = 0; index < left / 2; ++index) {
      const float low = values[index], high = values[index + left / 2];
      const float other = __shfl_xor_sync(kAllLanes, upper ? low : high, distance);
      values[index] = (upper ? high : low) + other;
    }
  }
  float sum = values[0];
#pragma unroll
  for (; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAllLanes, sum, distance);
  return sum;
}

/// Offsets in floats; 32 bits hold them for kMixerMostRows.
template <class Config>
__device__ __forceinline__ float* partial_at(const MixerParams& params, int unit, int slice) {
  return params.partial + (unit * Config::kTile.slices + slice) * MixerTile::kUnit;
}
template <class Config>
__device__ __forceinline__ float* inject_partial_at(const MixerParams& params, int row, int slice) {
  return params.inject_partial + (row * Config::kTile.slices + slice) * MixerTile::kBranches;
}
/// The low buffer that this launch fills (`parity` of its number) or the other one.
template <class Config>
__device__ __forceinline__ Bf16* low_buffer(const MixerParams& params, uint32_t parity) {
  return params.low + static_cast<int>(parity & 1) * kMixerMostRows * Config::kTile.rank;
}

/// Totals of the down product that this block owns become rows of `low`. Whole warps.
template <class Config>
__device__ __forceinline__ void own_down_totals(const MixerParams& params, uint32_t parity) {
  constexpr MixerTile kTile = Config::kTile;
  // More at once would cost registers that the products need.
  constexpr int kAtOnce = 2, kWarps = kTile.warps(), kBlocks = kTile.blocks();
  constexpr float kScale = 1.0F / MixerTile::kBranches;
  const int units = params.rows * Config::kLowUnits;
  const int stride = kWarps * kBlocks, lane = lane_id();
  auto* low = reinterpret_cast<uint32_t*>(low_buffer<Config>(params, parity));
  const uint4 absent = {1, 1, 1, 1};
  for (int first = warp_id() * kBlocks + static_cast<int>(blockIdx.x); first < units;
       first += kAtOnce * stride) {
    uint4 words[kAtOnce][2];
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int index = 0; index < kAtOnce; ++index) {
        const int unit = first + index * stride;
        words[index][0] = words[index][1] = absent;
        if (unit >= units || lane >= kTile.slices) continue;
        const float* from = partial_at<Config>(params, unit, lane);
        words[index][0] = load_handover(from);
        words[index][1] = load_handover(from + 4);
      }
#pragma unroll
      for (int index = 0; index < kAtOnce; ++index)
        complete = complete && all_written(words[index][0]) && all_written(words[index][1]);
    } while (!__all_sync(kAllLanes, complete));
#pragma unroll
    for (int index = 0; index < kAtOnce; ++index) {
      const int unit = first + index * stride;
      if (unit >= units) break;  // the same in the whole warp
      float values[MixerTile::kUnit] = {};
      if (lane < kTile.slices) {
        const uint4 front = words[index][0], back = words[index][1];
        values[0] = __uint_as_float(front.x), values[1] = __uint_as_float(front.y);
        values[2] = __uint_as_float(front.z), values[3] = __uint_as_float(front.w);
        values[4] = __uint_as_float(back.x), values[5] = __uint_as_float(back.y);
        values[6] = __uint_as_float(back.z), values[7] = __uint_as_float(back.w);
      }
      const float total = fast_silu(transposed_warp_sum(values) * kScale);
      const float neighbor = __shfl_xor_sync(kAllLanes, total, kWarp / MixerTile::kUnit);
      constexpr int kLanesPerWord = 2 * kWarp / MixerTile::kUnit;
      if (lane % kLanesPerWord == 0)
        store_handover_word(low + unit * (MixerTile::kUnit / 2) + lane / kLanesPerWord,
                            handover_pair(pack_bf16(total, neighbor)));
    }
    // Nobody else reads these words: the next launch finds them empty.
#pragma unroll
    for (int index = 0; index < kAtOnce; ++index) {
      const int unit = first + index * stride;
      if (unit >= units || lane >= kTile.slices) continue;
      float* to = partial_at<Config>(params, unit, lane);
      store_handover(to, {});
      store_handover(to + 4, {});
    }
  }
}

/// Inject logits of the rows that this block owns: the last blocks and warps, which own the fewest
/// totals of the down product. Whole warps.
template <class Config>
__device__ __forceinline__ void own_inject_totals(const MixerParams& params) {
  constexpr MixerTile kTile = Config::kTile;
  constexpr int kWarps = kTile.warps(), kBlocks = kTile.blocks();
  constexpr float kScale = 1.0F / MixerTile::kBranches;
  constexpr int kLanesPerLogit = kWarp / MixerTile::kBranches;
  const int lane = lane_id(), block = kBlocks - 1 - static_cast<int>(blockIdx.x);
  for (int row = (kWarps - 1 - warp_id()) * kBlocks + block; row < params.rows;
       row += kWarps * kBlocks) {
    float* from = inject_partial_at<Config>(params, row, lane);
    uint4 words = {1, 1, 1, 1};
    do {
      if (lane < kTile.slices) words = load_handover(from);
    } while (!__all_sync(kAllLanes, all_written(words)));
    float values[MixerTile::kBranches] = {};
    if (lane < kTile.slices) {
      values[0] = __uint_as_float(words.x), values[1] = __uint_as_float(words.y);
      values[2] = __uint_as_float(words.z), values[3] = __uint_as_float(words.w);
      store_handover(from, {});
    }
    const float total = transposed_warp_sum(values) * kScale;
    if (lane % kLanesPerLogit == 0)
      params.inject[row * MixerTile::kBranches + lane / kLanesPerLogit] = total;
  }
}

/// Empties this block's part of the low buffer that the next launch fills.
template <class Config>
__device__ __forceinline__ void empty_other_low(const MixerParams& params, uint32_t parity) {
  constexpr int kUnits = kMixerMostRows * Config::kLowUnits;
  auto* other = reinterpret_cast<uint4*>(low_buffer<Config>(params, parity + 1));
  for (int unit = static_cast<int>(blockIdx.x * Config::kThreads + threadIdx.x); unit < kUnits;
       unit += Config::kThreads * Config::kTile.blocks())
    store_handover(other + unit, {});
}

/// The part of a round of `low` that a thread brings to shared memory: 16 bytes of every
/// kRowsAtOnce-th row.
template <class Config>
struct LowPieces {
  static constexpr int kRowsAtOnce = Config::kThreads / Config::kLowUnits;
  static constexpr int kCount = kMixerRoundRows / kRowsAtOnce;
  static_assert(kRowsAtOnce * Config::kLowUnits == Config::kThreads);
  static_assert(kCount * kRowsAtOnce == kMixerRoundRows);

  int row = static_cast<int>(threadIdx.x) / Config::kLowUnits;
  int unit = static_cast<int>(threadIdx.x) % Config::kLowUnits;
  uint4 words[kCount];

  __device__ __forceinline__ void load(const Bf16* low, int first_row, int rows) {
    const int left = rows - first_row - row;
    // Whole rows follow each other, so a thread's pieces are kThreads units apart.
    const uint4* from = reinterpret_cast<const uint4*>(low) + first_row * Config::kLowUnits +
                        static_cast<int>(threadIdx.x);
#pragma unroll
    for (int index = 0; index < kCount; ++index) {
      words[index] = {1, 1, 1, 1};
      if (index * kRowsAtOnce < left) words[index] = load_handover(from + index * Config::kThreads);
    }
  }

  /// Until all of the warp's pieces are there.
  __device__ __forceinline__ void wait(const Bf16* low, int first_row, int rows) {
    for (;;) {
      bool complete = true;
#pragma unroll
      for (const uint4& piece : words) complete = complete && all_written(piece);
      if (__all_sync(kAllLanes, complete)) return;
      load(low, first_row, rows);
    }
  }
};

}  // namespace tessera::cuda::device
