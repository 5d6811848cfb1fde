// SPDX-License-Identifier: Apache-2.0
// The best `budget` blocks of a row, exactly and in ascending order. A group's best key decides
// whether any key of the group can be among the best, so most scores are never read: first the best
// groups, then the best keys of these. No candidate buffer can overflow.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/qsa_select/choose_search.cuh"
#include "cuda/qsa_select/qsa_select_plan.h"
#include "cuda/qsa_select/score_key.cuh"

namespace tessera::cuda::device {

/// Blocks that a row sees. Asks all spans at once rather than row_span first: one trip to memory,
/// not two that depend on each other.
__device__ __forceinline__ int visible_of_row(const SelectLaunch& select, const Batch& batch,
                                              int row) {
  int visible = 0;
#pragma unroll 2
  for (int index = lane_id(); index < batch.num_spans; index += kWarp) {
    const ops::RowSpan span = batch.spans[index];
    const auto inner = static_cast<uint32_t>(row - span.row_begin);
    if (inner < static_cast<uint32_t>(span.num_rows)) visible = select.visible(span, row);
  }
  return __reduce_max_sync(kAllLanes, visible);
}

/// Count of a row, and the whole list when the row takes all its blocks: then true.
__device__ __forceinline__ bool write_all(const SelectLaunch& select, int row, int visible) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) select.counts[row] = min(visible, select.budget);
  if (visible > select.budget) return false;
#pragma unroll 1
  for (int block = thread; block < visible; block += kChooseThreads)
    select.block_row(row)[block] = block;
  return true;
}

/// The best keys of a row's groups; a thread may hold all of the longest row.
using GroupTops = HeldKeys<kTopsPerThread>;
/// The keys of one group.
using GroupKeys = HeldKeys<kGroupKeys>;

/// Reads a row's tops before its length is known: what lies past its end is arbitrary.
__device__ __forceinline__ GroupTops load_tops(const SelectLaunch& select, int row) {
  constexpr int kWidth = 4, kVectors = kTopsPerThread / kWidth;
  const int stride = static_cast<int>(select.top_stride());
  const int vectors = (stride - 1) / (kChooseThreads * kWidth) + 1;
  GroupTops tops;
  tops.first = static_cast<int>(threadIdx.x) * vectors * kWidth;
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector) {
    const int start = tops.first + vector * kWidth;
    uint4 value{kNoScore, kNoScore, kNoScore, kNoScore};
    if (vector < vectors && start < stride)
      value = *reinterpret_cast<const uint4*>(select.top_row(row) + start);
    tops.set(vector, value);
  }
  return tops;
}

__device__ __forceinline__ GroupKeys load_group(const uint32_t* scores, int group) {
  constexpr int kVectors = kGroupKeys / 4;
  GroupKeys keys;
  keys.first = group * kGroupKeys;
#pragma unroll
  for (int vector = 0; vector < kVectors; ++vector)
    keys.set(vector, group < 0 ? uint4{kNoScore, kNoScore, kNoScore, kNoScore}
                               : reinterpret_cast<const uint4*>(scores + keys.first)[vector]);
  return keys;
}

struct ChooseShared {
  SearchShared search;
  int32_t groups[kFastBudget];  // the chosen ones, ascending
};

/// grid: rows, for plans with fast_choice.
__global__ void __launch_bounds__(kChooseThreads, kChooseBlocksPerSm)
    choose_blocks(const __grid_constant__ SelectLaunch select,
                  const __grid_constant__ Batch batch) {
  __shared__ ChooseShared shared;
  const int thread = static_cast<int>(threadIdx.x);
  clear_histogram(shared.search);
  wait_for_inputs();
  allow_next_kernel();
  const int row = select.row_begin + static_cast<int>(blockIdx.x);
  GroupTops tops = load_tops(select, row);
  const int visible = visible_of_row(select, batch, row);
  if (write_all(select, row, visible)) return;

  const int groups = (visible - 1) / kGroupKeys + 1;
  const uint32_t* scores = select.score_row(row);
  KeyRange range;
  GroupKeys keys;
  if (groups <= select.budget) {
    keys = load_group(scores, thread < groups ? thread : -1);
    range = block_range(shared.search, keys.range(visible, select.budget));
  } else {
#pragma unroll
    for (int at = 0; at < kTopsPerThread; ++at)
      if (tops.first + at >= groups) tops.keys[at] = kNoScore;
    range = block_range(shared.search, tops.range(groups, select.budget));
    const Threshold cut = find_threshold(shared.search, tops, range, select.budget);
    emit_taken(shared.search, tops, cut,
               [&](int place, int group) { shared.groups[place] = group; });
    __syncthreads();  // the list of groups is there
    keys = load_group(scores, thread < select.budget ? shared.groups[thread] : -1);
    range.low = cut.low;  // `budget` groups have a key from there on
  }
  const Threshold cut = find_threshold(shared.search, keys, range, select.budget);
  int32_t* out = select.block_row(row);
  emit_taken(shared.search, keys, cut, [&](int place, int block) { out[place] = block; });
}

/// Any length and budget, and scores without tops: one block that reads the row again each time.
/// grid: rows.
__global__ void __launch_bounds__(kChooseThreads)
    choose_any_blocks(const __grid_constant__ SelectLaunch select,
                      const __grid_constant__ Batch batch) {
  __shared__ SearchShared shared;
  clear_histogram(shared);
  wait_for_inputs();
  allow_next_kernel();
  const int row = select.row_begin + static_cast<int>(blockIdx.x);
  const int visible = visible_of_row(select, batch, row);
  if (write_all(select, row, visible)) return;
  const int per_thread = (visible - 1) / kChooseThreads + 1;
  const int first = static_cast<int>(threadIdx.x) * per_thread;
  const RereadKeys keys{select.score_row(row), first, min(first + per_thread, visible)};
  __syncthreads();  // the histogram is empty
  const Threshold cut = find_threshold(shared, keys, {kNanScore, kLastKey}, select.budget);
  int32_t* out = select.block_row(row);
  emit_taken(shared, keys, cut, [&](int place, int block) { out[place] = block; });
}

}  // namespace tessera::cuda::device
