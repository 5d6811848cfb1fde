// SPDX-License-Identifier: Apache-2.0
// The compile-time config of the tile kernel and its map of shared memory.
#pragma once

#include <math_constants.h>

#include "cuda/device/batch.cuh"
#include "cuda/device/copy_arrive.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/qsa_attend/attend_elements.cuh"
#include "cuda/qsa_attend/qsa_attend_plan.h"

namespace tessera::cuda::device {

template <class Cache, size_t kIndex>
struct AttendConfig {
  using Elements = Cache;
  static constexpr AttendTile kTile = kAttendTiles[kIndex];
  static constexpr int kRows = kTile.rows;
  static constexpr int kSplits = kTile.splits;
  static constexpr int kSlots =
      kTile.slots * static_cast<int>(sizeof(Bf16) / sizeof(typename Cache::Element));
  /// Most blocks that the rows of one pass may touch together; one row alone always fits.
  static constexpr int kUnion = kRows == 1 ? kAttendTileBlocks : 2 * kAttendTileBlocks;
  static constexpr int kPassBlocks = kUnion + kRows;  // and the open tails
  static_assert(kPassBlocks <= kSlots);

  static constexpr int kProducerWarps = kTile.producer_warps;
  static constexpr int kProducerThreads = kProducerWarps * kWarp;
  static constexpr int kRowWarps = kTile.row_warps;  // consumers of one row
  static constexpr int kRowThreads = kRowWarps * kWarp;
  static constexpr int kConsumerWarps = kRows * kRowWarps;
  static constexpr int kConsumerThreads = kConsumerWarps * kWarp;
  static constexpr int kThreads = kConsumerThreads + kProducerThreads;

  static constexpr int kGroup = FastAttendShape::kGroup;
  static constexpr int kDim = FastAttendShape::kHeadDim;
  static constexpr int kBlock = FastAttendShape::kBlock;
  static constexpr float kRootDim = 16;
  static_assert(kRootDim * kRootDim == kDim);
  static constexpr float kLogitScale = CUDART_L2E_F / kRootDim;  // logits in base-2 units
  static constexpr int kTokenBytes = kDim * static_cast<int>(sizeof(typename Cache::Element));
  static constexpr int kTokenVectors = kTokenBytes / kVectorBytes;
  static constexpr int kBlockBytes = kBlock * kTokenBytes;
};

/// Heads of an MMA tile: 12 and four that compute copies of the last one.
inline constexpr int kMmaRows = 16;
/// Place of the open tail behind the blocks of a tile.
inline constexpr int kTailEntry = kAttendTileBlocks;
/// The weights of a tile are summed in this many equal parts of its entries, and these in order.
inline constexpr int kSumParts = 4;

/// What producers tell consumers: some rows' share of one tile and where its blocks lie in the
/// ring.
template <class Config>
struct AttendPass {
  int row_begin = 0;
  int row_end = 0;
  int last = 0;
  int first_key = 0;  // ring slot of the pass's first block
  int first_value = 0;
  int entries[Config::kRows];                    // blocks of the row in this tile
  int tail_tokens[Config::kRows];                // 0: no tail, or it belongs to another tile
  uint8_t place[Config::kRows][kTailEntry + 4];  // of each entry, counted from the pass's first
};

inline constexpr size_t kHopperSharedBytes = 232448;  // of a block, with opt-in

template <class Config>
struct AttendShared {
  // Rows start one 16-byte vector further on the banks each, so that ldmatrix meets no conflict.
  static constexpr int kQueryStride = Config::kDim + kVectorBf16;
  static constexpr int kWeightTokens = Config::kBlock * kAttendTileBlocks + kAttendChunk;
  static constexpr int kWeightStride = kWeightTokens + kVectorBf16;
  static constexpr int kSumStride = Config::kDim + kVectorBf16;
  static constexpr int kPasses = 2;  // in flight

  union {
    alignas(128) std::byte ring[Config::kSlots * Config::kBlockBytes];  // blocks of K and of V
    float sums[Config::kRows][Config::kGroup][kSumStride];  // after the last pass, for the cluster
  };
  alignas(16) uint16_t query[Config::kRows][Config::kGroup][kQueryStride];
  alignas(16) uint16_t weights[Config::kRows][Config::kGroup][kWeightStride];
  float4 partial[Config::kRows][Config::kGroup];  // peak, sum of weights; for the cluster
  float peak[Config::kRows][Config::kRowWarps][kMmaRows];
  float weight_sum[Config::kRows][kSumParts][kMmaRows];
  int2 source[Config::kProducerWarps][Config::kPassBlocks];  // page id, block in page
  AttendPass<Config> pass[kPasses];
  uint64_t keys_full[kPasses], values_full[kPasses];    // copies have landed, the pass is described
  uint64_t keys_empty[kPasses], values_empty[kPasses];  // every consumer warp has read its operands

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __device__ void init_barriers() {
    for (int stage = 0; stage < kPasses; ++stage) {
      init_barrier(&keys_full[stage], Config::kProducerThreads + 1);
      init_barrier(&values_full[stage], Config::kProducerThreads);
      init_barrier(&keys_empty[stage], Config::kConsumerWarps);
      init_barrier(&values_empty[stage], Config::kConsumerWarps);
    }
    fence_barrier_init();
  }
#endif
};

/// The vectors of a token are permuted inside each 128 bytes by this key, so that the eight tokens
/// of a fragment (two blocks) lie on different banks when the places of the blocks differ in
/// parity.
__device__ __forceinline__ int swizzle_key(int place, int token) {
  return token + FastAttendShape::kBlock * (place % 2);
}

/// Neighbouring rows of one sequence.
struct AttendRows {
  int first = 0;         // row of the launch
  int count = 0;         // 0: nothing to do
  int64_t position = 0;  // of the first one
  const int32_t* pages = nullptr;
};

/// Group `index` of the launch: every span gives ceil(rows / kMost) groups of nearly equal size.
/// Whole warps call this.
template <int kMost>
__device__ AttendRows find_rows(const Batch& batch, int index) {
  if constexpr (kMost == 1) {
    if (index >= batch.num_rows) return {};
    const ops::RowSpan& span = batch.spans[batch.row_span[index]];
    return {index, 1, span.position + (index - span.row_begin), span.pages};
  } else {
    int span_index = 0, part = 0;
    bool found = false;
    int before = 0;
    for (int first = 0; first < batch.num_spans && !found; first += kWarp) {
      const int mine = first + lane_id();
      const int rows = mine < batch.num_spans ? batch.spans[mine].num_rows : 0;
      const int groups = (rows + kMost - 1) / kMost;
      int end = groups;
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const int other = __shfl_up_sync(kAllLanes, end, step);
        if (lane_id() >= step) end += other;
      }
      end += before;
      const uint32_t past = __ballot_sync(kAllLanes, index < end);
      found = past != 0;
      const int owner = found ? __ffs(static_cast<int>(past)) - 1 : kWarp - 1;
      before = __shfl_sync(kAllLanes, found ? end - groups : end, owner);
      span_index = first + owner;
    }
    if (!found) return {};
    part = index - before;
    const ops::RowSpan& span = batch.spans[span_index];
    const int groups = (span.num_rows + kMost - 1) / kMost;
    const int begin = part * span.num_rows / groups;
    const int end = (part + 1) * span.num_rows / groups;
    return {span.row_begin + begin, end - begin, span.position + begin, span.pages};
  }
}

}  // namespace tessera::cuda::device
