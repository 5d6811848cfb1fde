// SPDX-License-Identifier: Apache-2.0
// The best `budget` blocks of a row, exactly and in ascending order: a radix search for the score
// at the cut, then one ordered compaction. No candidate buffer, so nothing can overflow.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/qsa_select/qsa_select_plan.h"
#include "cuda/qsa_select/score_key.cuh"

namespace tessera::cuda::device {

/// Keys have 31 bits; each round fixes the next digit of the key at the cut.
inline constexpr int kKeyBits = 31;
inline constexpr int kRounds = 3;
inline constexpr int kBins = 2048;
inline constexpr int kBinsPerThread = kBins / kChooseThreads;
static_assert(kBinsPerThread == 4, "a thread reads its bins as one vector");
inline constexpr int kDigitBits = 11;

/// Lowest bit of the digit of a round: 20, 9 and 0 (the last digit has nine bits).
__device__ constexpr int digit_shift(int round) {
  const int shift = kKeyBits - (round + 1) * kDigitBits;
  return shift < 0 ? 0 : shift;
}

struct Pair {
  int first = 0;
  int second = 0;
};

/// What a round found: the digit at the cut, how many keys of the row lie above it and have it, and
/// the same for the blocks of the cluster before this one.
struct Cut {
  uint32_t digit;
  int above;
  int equal;
  int above_before;
  int equal_before;
};

struct ChooseShared {
  uint32_t histograms[kRounds][kBins];  // of this block's keys; the cluster reads them
  Pair warp_sums[kChooseThreads / kWarp];
  Cut cut;
};

/// A thread's keys, consecutive ones, held in registers.
struct HeldKeys {
  static constexpr int kWidth = 4;
  uint32_t keys[kChooseVectors * kWidth];
  int first;
  int vectors;  // the same for every thread of the cluster

  /// `thread` counts over the cluster of `threads`.
  __device__ __forceinline__ HeldKeys(const uint32_t* row, int count, int thread, int threads) {
    vectors = (count - 1) / (threads * kWidth) + 1;
    first = thread * vectors * kWidth;
#pragma unroll
    for (int vector = 0; vector < kChooseVectors; ++vector) {
      const int start = first + vector * kWidth;
      uint4 value{kNoScore, kNoScore, kNoScore, kNoScore};
      if (vector < vectors && start < count) value = *reinterpret_cast<const uint4*>(row + start);
      const uint32_t words[kWidth] = {value.x, value.y, value.z, value.w};
#pragma unroll
      for (int at = 0; at < kWidth; ++at)
        keys[vector * kWidth + at] = start + at < count ? words[at] : kNoScore;
    }
  }

  /// In ascending order of the blocks; all lanes of a warp call `visit` together.
  template <class Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) const {
#pragma unroll
    for (int vector = 0; vector < kChooseVectors; ++vector)
      if (vector < vectors) {
#pragma unroll
        for (int at = 0; at < kWidth; ++at)
          visit(keys[vector * kWidth + at], first + vector * kWidth + at);
      }
  }
};

/// The same for rows of any length: read again each time.
struct RereadKeys {
  const uint32_t* row;
  int count;
  int first;
  int per_thread;  // the same for every thread

  __device__ __forceinline__ RereadKeys(const uint32_t* row, int count, int thread, int threads)
      : row(row), count(count), per_thread((count - 1) / threads + 1) {
    first = thread * per_thread;
  }

  template <class Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) const {
    for (int index = first; index < first + per_thread; ++index)
      visit(index < count ? row[index] : kNoScore, index);
  }
};

/// Adds one to the bin of each lane with `counted`. ReLU makes equal scores common, and equal bins
/// of a warp would queue up: they are added at once.
__device__ __forceinline__ void count_bin(uint32_t* histogram, bool counted, uint32_t bin) {
  const uint32_t lanes = __ballot_sync(kAllLanes, counted);
  if (lanes == 0) return;
  const int leader = __ffs(static_cast<int>(lanes)) - 1;
  const uint32_t leader_bin = __shfl_sync(kAllLanes, bin, leader);
  if (__ballot_sync(kAllLanes, counted && bin == leader_bin) == lanes) {
    if (lane_id() == leader) atomicAdd(histogram + bin, static_cast<uint32_t>(__popc(lanes)));
  } else if (counted) {
    atomicAdd(histogram + bin, 1U);
  }
}

/// Sums over the threads before this one, and over all of them. Uses one barrier; `warp_sums` is
/// free again after the next.
__device__ __forceinline__ Pair exclusive_sums(const Pair& mine, Pair* warp_sums, Pair& total) {
  Pair sum = mine;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int first = __shfl_up_sync(kAllLanes, sum.first, step);
    const int second = __shfl_up_sync(kAllLanes, sum.second, step);
    if (lane_id() >= step) sum.first += first, sum.second += second;
  }
  if (lane_id() == kWarp - 1) warp_sums[warp_id()] = sum;
  __syncthreads();  // every warp's sums are there
  Pair before{sum.first - mine.first, sum.second - mine.second};
  total = {};
#pragma unroll 4
  for (int warp = 0; warp < kChooseThreads / kWarp; ++warp) {
    const Pair other = warp_sums[warp];
    if (warp < warp_id()) before.first += other.first, before.second += other.second;
    total.first += other.first, total.second += other.second;
  }
  return before;
}

/// The row in one launch-wide wave: every remote read of a round is under way at once.
struct LatencyChoice {
  using Keys = HeldKeys;
  static constexpr int kPeersAhead = kMaxCluster;
  static constexpr int kBlocksPerSm = 1;
};
/// Many rows: two blocks on each processor hide each other's waits.
struct ThroughputChoice {
  using Keys = HeldKeys;
  static constexpr int kPeersAhead = 2;
  static constexpr int kBlocksPerSm = 2;
};
struct AnyChoice {
  using Keys = RereadKeys;
  static constexpr int kPeersAhead = 1;
  static constexpr int kBlocksPerSm = 2;
};

/// Finds the digit at which `need` keys of the cluster are reached, counted from the highest bin.
template <class Config>
__device__ __forceinline__ Cut find_cut(ChooseShared& shared, const uint32_t* histogram, int need) {
  const int thread = static_cast<int>(threadIdx.x);
  const int rank = cluster_rank(), peers = cluster_blocks();
  const uint32_t* bins = histogram + thread * kBinsPerThread;
  int all[kBinsPerThread] = {}, before[kBinsPerThread] = {};
#pragma unroll Config::kPeersAhead
  for (int peer = 0; peer < peers; ++peer) {
    const uint4 counts = load_remote(remote_address(bins, peer));
    const int words[kBinsPerThread] = {static_cast<int>(counts.x), static_cast<int>(counts.y),
                                       static_cast<int>(counts.z), static_cast<int>(counts.w)};
#pragma unroll
    for (int bin = 0; bin < kBinsPerThread; ++bin) {
      all[bin] += words[bin];
      if (peer < rank) before[bin] += words[bin];
    }
  }
  Pair mine;
#pragma unroll
  for (int bin = 0; bin < kBinsPerThread; ++bin) mine.first += all[bin], mine.second += before[bin];
  Pair total;
  const Pair lower = exclusive_sums(mine, shared.warp_sums, total);
  Pair above{total.first - lower.first - mine.first, total.second - lower.second - mine.second};
#pragma unroll
  for (int bin = kBinsPerThread - 1; bin >= 0; --bin) {
    // True for one bin of one thread: the row has more than `need` keys.
    if (above.first < need && need <= above.first + all[bin])
      shared.cut = {.digit = static_cast<uint32_t>(thread * kBinsPerThread + bin),
                    .above = above.first,
                    .equal = all[bin],
                    .above_before = above.second,
                    .equal_before = before[bin]};
    above.first += all[bin], above.second += before[bin];
  }
  __syncthreads();  // the cut is there, and the sums of the warps have been read
  return shared.cut;
}

/// All keys whose digits are above `prefix`, and the first `need` of those equal to it.
struct Threshold {
  uint32_t prefix = 0;
  int shift = kKeyBits;
  int need = 0;
  int above_before = 0;  // keys above it in the blocks of the cluster before this one
  int equal_before = 0;
};

template <class Config>
__device__ __forceinline__ Threshold find_threshold(ChooseShared& shared,
                                                    const typename Config::Keys& keys, int budget) {
  Threshold threshold{.need = budget};
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    uint32_t* histogram = shared.histograms[round];
    const int shift = digit_shift(round);
    const uint32_t mask = (1U << (threshold.shift - shift)) - 1;
    keys.for_each([&](uint32_t key, int) {
      const bool counted = key != kNoScore && key >> threshold.shift == threshold.prefix;
      count_bin(histogram, counted, key >> shift & mask);
    });
    cluster_sync();  // every block of the cluster has counted this round
    const Cut cut = find_cut<Config>(shared, histogram, threshold.need);
    threshold.prefix = threshold.prefix << (threshold.shift - shift) | cut.digit;
    threshold.shift = shift;
    threshold.need -= cut.above;
    threshold.above_before += cut.above_before;
    threshold.equal_before = cut.equal_before;
    if (cut.equal == threshold.need) break;  // all of them are taken: the rest of the key is idle
  }
  return threshold;
}

/// Writes this block's part of the list: where a block goes follows from counts alone.
template <class Keys>
__device__ __forceinline__ void write_list(ChooseShared& shared, const Keys& keys,
                                           const Threshold& threshold, int32_t* out) {
  const auto is_above = [&](uint32_t key) { return key >> threshold.shift > threshold.prefix; };
  const auto is_equal = [&](uint32_t key) {
    return key != kNoScore && key >> threshold.shift == threshold.prefix;
  };
  Pair mine;
  keys.for_each([&](uint32_t key, int) {
    mine.first += is_above(key);
    mine.second += is_equal(key);
  });
  Pair total;
  Pair before = exclusive_sums(mine, shared.warp_sums, total);
  before.first += threshold.above_before, before.second += threshold.equal_before;
  keys.for_each([&](uint32_t key, int block) {
    if (is_above(key)) {
      out[before.first + min(before.second, threshold.need)] = block;
      ++before.first;
    } else if (is_equal(key)) {
      if (before.second < threshold.need) out[before.first + before.second] = block;
      ++before.second;
    }
  });
}

/// grid: rows x blocks of a cluster. Rows that take all their blocks are not scored at all.
template <class Config>
__global__ void __launch_bounds__(kChooseThreads, Config::kBlocksPerSm)
    choose_blocks(const __grid_constant__ SelectLaunch select,
                  const __grid_constant__ Batch batch) {
  __shared__ __align__(16) ChooseShared shared;
  const int thread = static_cast<int>(threadIdx.x);
  auto* words = reinterpret_cast<uint4*>(shared.histograms);
  constexpr int kHistogramVectors = sizeof(shared.histograms) / sizeof(uint4);
  for (int at = thread; at < kHistogramVectors; at += kChooseThreads) words[at] = {0, 0, 0, 0};
  __syncthreads();  // the histograms are empty
  wait_for_inputs();
  allow_next_kernel();
  const int rank = cluster_rank(), peers = cluster_blocks();
  const int row = select.row_begin + static_cast<int>(blockIdx.x) / peers;
  const int visible = select.visible(batch.spans[batch.row_span[row]], row);
  int32_t* out = select.blocks + int64_t{row} * select.budget;
  if (rank == 0 && thread == 0) select.counts[row] = min(visible, select.budget);
  if (visible <= select.budget) {  // for all blocks of the cluster, none waits for another
    if (rank == 0)
      for (int block = thread; block < visible; block += kChooseThreads) out[block] = block;
    return;
  }
  const typename Config::Keys keys(select.score_row(row), visible, rank * kChooseThreads + thread,
                                   peers * kChooseThreads);
  const Threshold threshold = find_threshold<Config>(shared, keys, select.budget);
  cluster_arrive();  // this thread reads no other block's histograms any more
  write_list(shared, keys, threshold, out);
  cluster_wait();  // a block must not end while its histograms are read
}

}  // namespace tessera::cuda::device
