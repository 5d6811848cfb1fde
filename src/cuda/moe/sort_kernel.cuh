// SPDX-License-Identifier: Apache-2.0
// Sorts the pairs (row, slot) of a prompt by expert, rows ascending within one: counts per segment,
// then places. Stable and without an order that depends on timing.
#pragma once

#include <cstdint>

#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/moe/block_scan.cuh"
#include "cuda/moe/moe_plan.h"

namespace tessera::cuda::device {

/// Entries are pairs in sorted order, then one per row for the shared expert. Group 0 is the shared
/// expert, group 1 + e is expert e.
struct SortArgs {
  const int32_t* ids = nullptr;    // [rows, top_k]
  int32_t* histogram = nullptr;    // [segments, num_experts]
  int32_t* places = nullptr;       // [rows, slots] entry of each pair
  int32_t* source_rows = nullptr;  // [entries]
  int32_t* begins = nullptr;       // [groups] first entry
  int32_t* counts = nullptr;       // [groups]
  int32_t* tile_begins = nullptr;  // [groups + 1] tiles of the groups before
  int32_t* taken = nullptr;        // [kGroupedLaunches] tiles taken by each launch
  int rows = 0;
  int top_k = 0;
  int num_experts = 0;
  int tile_rows = 0;         // entries per tile at most
  int shared_tile_rows = 0;  // the same for the shared expert
};

/// Pairs of each expert in one segment per block.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) sort_count(SortArgs args) {
  __shared__ int counts[moe::kGroupedExperts];
  const auto thread = static_cast<int>(threadIdx.x);
  for (int expert = thread; expert < args.num_experts; expert += Config::kThreads)
    counts[expert] = 0;
  __syncthreads();  // counts are zero
  wait_for_inputs();
  allow_next_kernel();
  const int pair = static_cast<int>(blockIdx.x) * Config::kThreads + thread;
  if (pair < args.rows * args.top_k) atomicAdd(&counts[args.ids[pair]], 1);
  __syncthreads();  // counts are complete
  int32_t* out =
      args.histogram + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(args.num_experts);
  for (int expert = thread; expert < args.num_experts; expert += Config::kThreads)
    out[expert] = counts[expert];
}

/// One block per segment; every block adds up the counts it needs, block 0 writes the group tables.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) sort_place(SortArgs args) {
  constexpr int kPerThread = moe::kGroupedExperts / Config::kThreads;
  __shared__ alignas(16) int segment[Config::kThreads];  // experts of this segment's pairs
  __shared__ int first[moe::kGroupedExperts];  // entry of an expert's first pair of the segment
  __shared__ int warp_sums[Config::kThreads / kWarp];
  const auto thread = static_cast<int>(threadIdx.x);
  const auto block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  const int pairs = args.rows * args.top_k;
  const int pair = block * Config::kThreads + thread;
  wait_for_inputs();
  allow_next_kernel();
  const int own = pair < pairs ? args.ids[pair] : -1;
  segment[thread] = own;

  int total[kPerThread] = {}, before[kPerThread] = {};
  for (int step = 0; step < kPerThread; ++step) {
    const int expert = thread * kPerThread + step;
    if (expert >= args.num_experts) continue;
#pragma unroll 8
    for (int other = 0; other < blocks; ++other) {
      const int count = args.histogram[other * args.num_experts + expert];
      total[step] += count;
      if (other < block) before[step] += count;
    }
  }
  int sum = 0, tiles = 0;
  for (int step = 0; step < kPerThread; ++step) {
    sum += total[step];
    tiles += moe::ceil_div(total[step], args.tile_rows);
  }
  int begin = exclusive_sum<Config::kThreads>(sum, warp_sums);
  int tile = exclusive_sum<Config::kThreads>(tiles, warp_sums) +
             moe::ceil_div(args.rows, args.shared_tile_rows);
  for (int step = 0; step < kPerThread; ++step) {
    const int expert = thread * kPerThread + step;
    if (expert >= args.num_experts) continue;
    first[expert] = begin + before[step];
    if (block == 0) {
      args.begins[1 + expert] = begin;
      args.counts[1 + expert] = total[step];
      args.tile_begins[1 + expert] = tile;
      if (expert == args.num_experts - 1)
        args.tile_begins[2 + expert] = tile + moe::ceil_div(total[step], args.tile_rows);
    }
    begin += total[step];
    tile += moe::ceil_div(total[step], args.tile_rows);
  }
  if (block == 0 && thread == 0) {
    args.begins[0] = pairs;
    args.counts[0] = args.rows;
    args.tile_begins[0] = 0;
    for (int launch = 0; launch < moe::kGroupedLaunches; ++launch) args.taken[launch] = 0;
  }
  __syncthreads();  // the segment's experts and first entries are there

  const int slots = args.top_k + 1;
  if (own >= 0) {
    int rank = 0;  // pairs of the same expert earlier in the segment
    for (int other = 0; other < thread; other += 4) {
      const int4 ids = *reinterpret_cast<const int4*>(segment + other);
      rank += (ids.x == own) + (ids.y == own && other + 1 < thread) +
              (ids.z == own && other + 2 < thread) + (ids.w == own && other + 3 < thread);
    }
    const int row = pair / args.top_k, entry = first[own] + rank;
    args.places[row * slots + pair % args.top_k] = entry;
    args.source_rows[entry] = row;
  }
  for (int row = pair; row < args.rows; row += blocks * Config::kThreads) {
    args.places[row * slots + args.top_k] = pairs + row;
    args.source_rows[pairs + row] = row;
  }
}

}  // namespace tessera::cuda::device
