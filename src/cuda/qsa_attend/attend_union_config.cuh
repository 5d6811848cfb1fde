// SPDX-License-Identifier: Apache-2.0
// Config and shared memory of the prompt kernel, and the list of blocks that its queries select
// together.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/copy_arrive.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/wgmma_weights.cuh"
#include "cuda/qsa_attend/attend_fold.cuh"
#include "cuda/qsa_attend/qsa_attend_plan.h"

namespace tessera::cuda::device {

struct UnionAttend {
  static constexpr int kQueries = UnionPlan::kQueries;
  static constexpr int kGroup = FastAttendShape::kGroup;
  static constexpr int kDim = FastAttendShape::kHeadDim;
  static constexpr int kBlock = FastAttendShape::kBlock;
  static constexpr int kPageBlocks = ops::kPageTokens / kBlock;

  // Rows of the products: head by head, the eight queries of each.
  static constexpr int kConsumers = 2;  // warp groups of 64 rows
  static constexpr int kRows = kConsumers * 64;
  static_assert(kGroup * kQueries <= kRows);
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

  static constexpr int kTileBlocks = 16;
  static constexpr int kTileTokens = kTileBlocks * kBlock;
  static constexpr int kSlabs = kDim * static_cast<int>(sizeof(Bf16)) / kSwizzleBytes;
  static constexpr int kSlabBytes = kTileTokens * kSwizzleBytes;
  static constexpr int kBlockBytes = kBlock * kDim * static_cast<int>(sizeof(Bf16));
  static constexpr int kStages = 2;
  static constexpr float kRootDim = 16;
  static_assert(kRootDim * kRootDim == kDim);
  static constexpr float kLogitScale = CUDART_L2E_F / kRootDim;  // logits in base-2 units
};

/// Tiles of 64 tokens, in slabs of 64 dims as wgmma reads them.
using UnionTile = std::byte[UnionAttend::kSlabs][UnionAttend::kSlabBytes];

struct UnionShared {
  using Config = UnionAttend;
  alignas(1024) std::byte query[Config::kSlabs][Config::kRows * kSwizzleBytes];
  union {
    alignas(1024) UnionTile tiles[2 * Config::kStages];
    // A byte per block of the sequence, a bit per query.
    uint32_t chosen[UnionPlan::kMaxBlocks / 4];
  };
  uint32_t list[UnionPlan::kListEntries];  // block << 8 | queries that selected it, ascending
  int counts[2][Config::kWarps];
  uint64_t keys_full[Config::kStages], values_full[Config::kStages];    // copies have landed
  uint64_t keys_empty[Config::kStages], values_empty[Config::kStages];  // products have read them

  __device__ UnionTile& keys(int stage) { return tiles[stage]; }
  __device__ UnionTile& values(int stage) { return tiles[Config::kStages + stage]; }
};

/// Queries of one sequence whose positions share position / 8.
struct QueryGroup {
  int first = 0;  // row of the launch
  int count = 0;
  int position = 0;  // of the first one
  const int32_t* pages = nullptr;

  __device__ int last_position() const { return position + count - 1; }
};

/// Group `index` of the launch; it exists. One thread's work: launches of prompts have few spans.
__device__ inline QueryGroup find_queries(const Batch& batch, int index) {
  constexpr int kQueries = UnionAttend::kQueries;
  for (int span_index = 0; span_index < batch.num_spans; ++span_index) {
    const ops::RowSpan& span = batch.spans[span_index];
    const int begin = static_cast<int>(span.position), end = begin + span.num_rows;
    const int groups = UnionPlan::groups(begin, span.num_rows);
    if (index >= groups) {
      index -= groups;
      continue;
    }
    const int aligned = (begin / kQueries + index) * kQueries;
    const int first = max(begin, aligned), last = min(end, aligned + kQueries);
    return {span.row_begin + first - begin, last - first, first, span.pages};
  }
  return {};
}

/// Marks which queries selected which block. A query's open tail counts as a block here: its tokens
/// are told apart by their positions. All threads; ends with a barrier.
__device__ inline void mark_blocks(UnionShared& shared, const ops::QsaAttendArgs& args,
                                   const QueryGroup& group) {
  using Config = UnionAttend;
  const int thread = static_cast<int>(threadIdx.x);
  const int num_blocks = group.last_position() / Config::kBlock + 1;
  auto* zeroed = reinterpret_cast<uint4*>(shared.chosen);
  for (int vector = thread; vector * kVectorBytes < num_blocks; vector += Config::kThreads)
    zeroed[vector] = {};
  __syncthreads();  // the marks are clear
  const auto mark = [&](int block, int query) {
    atomicOr(&shared.chosen[block / 4], 1U << (block % 4 * Config::kQueries + query));
  };
  const int budget = args.budget_blocks;
#pragma unroll 4
  for (int entry = thread; entry < group.count * budget; entry += Config::kThreads) {
    const int query = entry / budget;
    const int block = args.blocks[static_cast<size_t>(group.first) * static_cast<size_t>(budget) +
                                  static_cast<size_t>(entry)];
    if (entry % budget < args.counts[group.first + query]) mark(block, query);
  }
  if (thread < group.count) {
    const int visible = group.position + thread + 1;
    if (visible % Config::kBlock != 0) mark(visible / Config::kBlock, thread);
  }
  __syncthreads();  // the marks are complete
}

/// Marked blocks into the list, ascending; returns how many. All threads; ends with a barrier,
/// after which the marks may be overwritten. Whole tiles are listed, the last one is filled up with
/// blocks of no query.
__device__ inline int list_blocks(UnionShared& shared, const QueryGroup& group) {
  using Config = UnionAttend;
  const int thread = static_cast<int>(threadIdx.x);
  const int num_blocks = group.last_position() / Config::kBlock + 1;
  int total = 0;
  for (int round = 0; round * Config::kThreads * kVectorBytes < num_blocks; ++round) {
    const int vector = round * Config::kThreads + thread;
    uint4 marks{};
    if (vector * kVectorBytes < num_blocks) marks = reinterpret_cast<uint4*>(shared.chosen)[vector];
    const uint32_t words[4] = {marks.x, marks.y, marks.z, marks.w};
    int mine = 0;
#pragma unroll
    for (const uint32_t word : words) mine += __popc(__vsetne4(word, 0));
    int end = mine;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, end, step);
      if (lane_id() >= step) end += other;
    }
    int* counts = shared.counts[round % 2];
    if (lane_id() == kWarp - 1) counts[warp_id()] = end;
    __syncthreads();  // the counts of all warps are there; those of the round before were read
    int at = total + end - mine;
#pragma unroll
    for (int warp = 0; warp < Config::kWarps; ++warp) {
      if (warp < warp_id()) at += counts[warp];
      total += counts[warp];
    }
#pragma unroll
    for (int byte = 0; byte < kVectorBytes; ++byte) {
      const uint32_t queries = words[byte / 4] >> (byte % 4 * 8) & 0xFFU;
      if (queries != 0)
        shared.list[at++] = static_cast<uint32_t>(vector * kVectorBytes + byte) << 8 | queries;
    }
  }
  const int padded = (total + Config::kTileBlocks - 1) / Config::kTileBlocks * Config::kTileBlocks;
  if (total + thread < padded) shared.list[total + thread] = 0;
  __syncthreads();  // the list is complete
  return total;
}

}  // namespace tessera::cuda::device
