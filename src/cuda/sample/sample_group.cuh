// SPDX-License-Identifier: Apache-2.0
// The blocks that work on one row of logits: sums and maxima over all of them. Everything that
// crosses threads is an integer, so no result depends on how many blocks there are.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/sample/sample_plan.h"
#include "ops/sample.h"

namespace tessera::cuda::device {

inline constexpr int kSampleWarps = kSampleThreads / kWarp;
inline constexpr int kSampleBinBits = 11;
inline constexpr int kSampleBins = 1 << kSampleBinBits;

/// What a block hands to the others of its group.
struct alignas(16) Published {
  uint64_t first = 0, second = 0;
};

/// Where a search stopped in a histogram.
struct FoundBin {
  uint32_t bin;
  uint64_t above;  // sum of the bins above it and of what the search started with
  uint64_t total;  // of the bin
};

struct SampleShared {
  ops::SampleRow row;
  int edits_begin, edits_end;
  Published published[2];
  Published gathered[kSampleMaxBlocks];
  uint64_t warp_values[kSampleWarps];
  uint32_t warp_bad[kSampleWarps];
  FoundBin found;
  uint32_t found_id;
  uint32_t num_top;
  Published top[ops::kMaxTopTokens];          // packed tokens, in any order
  alignas(16) uint32_t low[kSampleBins];      // histogram: lower halves of sums
  alignas(16) uint32_t high[kSampleBins];     // upper halves
  alignas(16) uint64_t reduced[kSampleBins];  // sums over the group, of this block's bins
};

__device__ __forceinline__ uint64_t warp_sum64(uint64_t value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}
__device__ __forceinline__ uint64_t warp_max64(uint64_t value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, value, step);
    value = other > value ? other : value;
  }
  return value;
}
/// Sum over this lane and the lanes below it.
__device__ __forceinline__ uint64_t warp_prefix64(uint64_t value) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint64_t other = __shfl_up_sync(kAllLanes, value, step);
    if (lane_id() >= step) value += other;
  }
  return value;
}

class SampleGroup {
 public:
  __device__ explicit SampleGroup(SampleShared& shared)
      : shared_(shared), rank_(cluster_rank()), blocks_(cluster_blocks()) {}

  __device__ int rank() const { return rank_; }
  __device__ int blocks() const { return blocks_; }
  __device__ SampleShared& shared() const { return shared_; }

  /// Every thread of every block calls this with values that are equal within its block; then
  /// shared().gathered has those of all blocks. Also a barrier of the group.
  __device__ void exchange(uint64_t first, uint64_t second) {
    Published& mine = shared_.published[parity_];
    if (threadIdx.x == 0) mine = {first, second};
    cluster_sync();  // published everywhere; readers of the last but one exchange are done
    if (static_cast<int>(threadIdx.x) < blocks_) {
      const uint4 raw = load_remote(remote_address(&mine, static_cast<int>(threadIdx.x)));
      shared_.gathered[threadIdx.x] = {uint64_t{raw.y} << 32 | raw.x,
                                       uint64_t{raw.w} << 32 | raw.z};
    }
    __syncthreads();  // gathered is complete
    parity_ ^= 1;
  }

  /// Sum over the threads of this block, in every thread; shared().warp_values keeps those of its
  /// warps until the next call.
  __device__ uint64_t block_sum(uint64_t value) {
    value = warp_sum64(value);
    __syncthreads();  // readers of an earlier call are done
    if (lane_id() == 0) shared_.warp_values[warp_id()] = value;
    __syncthreads();  // the values of all warps are there
    uint64_t total = 0;
#pragma unroll
    for (int warp = 0; warp < kSampleWarps; ++warp) total += shared_.warp_values[warp];
    return total;
  }

  /// After an exchange: sum of `first` over the blocks before `end`.
  __device__ uint64_t sum_before(int end) const {
    uint64_t sum = 0;
    for (int block = 0; block < end; ++block) sum += shared_.gathered[block].first;
    return sum;
  }

 private:
  SampleShared& shared_;
  int rank_, blocks_;
  int parity_ = 0;
};

/// Order of logits as unsigned integers; both zeros are one. Never NaN.
__device__ __forceinline__ uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0F);  // -0 becomes +0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}
inline constexpr uint32_t kLowestKey = 0x007FFFFFU;  // of -Inf

/// A token in the total order: greater is better. Never 0.
__device__ __forceinline__ uint64_t packed(uint32_t key, uint32_t id) {
  return uint64_t{key} << 32 | static_cast<uint32_t>(~id);
}
__device__ __forceinline__ uint32_t key_in(uint64_t packed) {
  return static_cast<uint32_t>(packed >> 32);
}
__device__ __forceinline__ int32_t id_in(uint64_t packed) {
  return static_cast<int32_t>(~static_cast<uint32_t>(packed));
}

/// This block's part of a row. A warp owns a contiguous part of it, so tokens are in order of warp,
/// then of step, then of lane.
struct Slice {
  const float* logits = nullptr;  // of `first` and the tokens after it
  int first = 0;
  int count = 0;
  int warp_begin = 0, warp_end = 0;  // of this warp, within the slice

  __device__ Slice(const float* logits, int first, int count)
      : logits(logits), first(first), count(count) {
    const int share = (count + kSampleWarps - 1) / kSampleWarps;
    const int part = (share + kSampleGrain - 1) / kSampleGrain * kSampleGrain;
    warp_begin = min(warp_id() * part, count);
    warp_end = min(warp_begin + part, count);
  }

  /// fn(logit, id) for the tokens of this thread.
  template <class Fn>
  __device__ __forceinline__ void for_each(Fn&& fn) const {
#pragma unroll 4
    for (int index = warp_begin + lane_id(); index < warp_end; index += kWarp)
      fn(logits[index], static_cast<uint32_t>(first + index));
  }
  /// fn(logit, id, here) for all lanes in step; `here` is false past the end.
  template <class Fn>
  __device__ __forceinline__ void for_each_step(Fn&& fn) const {
    for (int step = warp_begin; step < warp_end; step += kWarp) {
      const int index = step + lane_id();
      const bool here = index < warp_end;
      if (!fn(here ? logits[index] : 0.0F, static_cast<uint32_t>(first + index), here)) return;
    }
  }
};

}  // namespace tessera::cuda::device
