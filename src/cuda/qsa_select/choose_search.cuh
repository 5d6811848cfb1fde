// SPDX-License-Identifier: Apache-2.0
// The search of the choice: the key at which the keys of a block's threads reach `need` from the
// top, exactly, and the places of the keys taken in an ascending list.
#pragma once

#include <cstdint>

#include "cuda/device/reduce.cuh"
#include "cuda/qsa_select/qsa_select_plan.h"
#include "cuda/qsa_select/score_key.cuh"

namespace tessera::cuda::device {

/// Each round fixes the next digit of the key at the cut; keys have 31 bits, so three rounds do.
inline constexpr int kDigitBits = 11;
inline constexpr int kBins = 1 << kDigitBits;
inline constexpr int kBinsPerThread = kBins / kChooseThreads;
inline constexpr int kChooseWarps = kChooseThreads / kWarp;
static_assert(kBinsPerThread == 4, "a thread reads its bins as one vector");

/// What is known about the key at the cut before the search: at least `need` keys are not below
/// `low`, none is above `high`.
struct KeyRange {
  uint32_t low;
  uint32_t high;
};

/// Takes all keys from `low` + `step` on, and the first `need` of those in [low, low + step).
struct Threshold {
  uint32_t low;
  uint32_t step;
  int need;

  /// Keys stay below 2^31, so the sign of a difference is right. kNoScore is below any `low`.
  __device__ __forceinline__ bool above(uint32_t key) const {
    return static_cast<int>(key - low) >= static_cast<int>(step);
  }
  __device__ __forceinline__ bool equal(uint32_t key) const { return key - low < step; }
};

/// The bin of the cut. The lowest bin is never counted: in rows with many equal scores most of them
/// would queue up there, and that it holds enough follows from the range.
struct ChoiceCut {
  uint32_t digit;
  int above;  // keys in higher bins
  int equal;  // keys in the bin, or kUncounted
};
inline constexpr int kUncounted = 0x7FFFFFFF;

struct SearchShared {
  alignas(16) uint32_t histogram[kBins];  // empty between rounds
  uint64_t sums[kChooseWarps];            // of block_exclusive, one user at a time
  KeyRange ranges[kChooseWarps];
  ChoiceCut cut;
};

/// A barrier must follow before the search.
__device__ __forceinline__ void clear_histogram(SearchShared& shared) {
  reinterpret_cast<uint4*>(shared.histogram)[threadIdx.x] = {0, 0, 0, 0};
}

/// Neighbouring keys of the row, held in registers; absent ones are kNoScore.
template <int kCount>
struct HeldKeys {
  /// Keys above or equal to a threshold, a bit each: the keys themselves may go.
  struct Candidates {
    uint32_t above = 0, equal = 0;
    int first;

    __device__ __forceinline__ Candidates(const HeldKeys& keys, const Threshold& threshold)
        : first(keys.first) {
      static_assert(kCount <= kWarp, "a bit for each key");
      keys.for_each([&](uint32_t key, int index) {
        const uint32_t bit = 1U << (index - keys.first);
        if (threshold.above(key)) above |= bit;
        if (threshold.equal(key)) equal |= bit;
      });
    }
    __device__ __forceinline__ uint32_t counts() const {
      constexpr int kHalf = 16;
      static_assert(kChooseThreads * kCount < 1 << kHalf);
      return static_cast<uint32_t>(__popc(above)) | static_cast<uint32_t>(__popc(equal)) << kHalf;
    }
    template <class Visit>
    __device__ __forceinline__ void for_each(const Visit& visit) const {
      for (uint32_t rest = above | equal; rest != 0; rest &= rest - 1) {
        const int at = __ffs(static_cast<int>(rest)) - 1;
        visit((above >> at & 1) != 0, first + at);
      }
    }
  };
  uint32_t keys[kCount];
  int first;

  __device__ __forceinline__ void set(int vector, const uint4& value) {
    uint32_t* to = keys + vector * 4;
    to[0] = value.x, to[1] = value.y, to[2] = value.z, to[3] = value.w;
  }

  template <class Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) const {
#pragma unroll
    for (int at = 0; at < kCount; ++at) visit(keys[at], first + at);
  }

  /// This thread's part of the range of a row of `count` keys. ChoiceCut into units of neighbours,
  /// the row has at least count / width units and each reaches its own largest key: the widest
  /// units of which there are `need` give the best bound. `low` is one less, so that threads and
  /// units without keys wrap to the end and do not matter.
  __device__ __forceinline__ KeyRange range(int count, int need) const {
    uint32_t largest[kCount];
    KeyRange range{0xFFFFFFFFU, 0};
#pragma unroll
    for (int at = 0; at < kCount; ++at) {
      largest[at] = keys[at];
      range.low = min(range.low, keys[at] - 1);
    }
#pragma unroll
    for (int width = 2; width <= kCount; width *= 2) {
      uint32_t low = 0xFFFFFFFFU;
#pragma unroll
      for (int at = 0; at < kCount; at += width) {
        largest[at] = max(largest[at], largest[at + width / 2]);
        low = min(low, largest[at] - 1);
      }
      if (count >= need * width) range.low = low;
    }
    range.high = largest[0];
    return range;
  }
};

/// The same for rows of any length: read again each time.
struct RereadKeys {
  struct Candidates {
    const RereadKeys& keys;
    const Threshold& threshold;

    __device__ __forceinline__ Candidates(const RereadKeys& keys, const Threshold& threshold)
        : keys(keys), threshold(threshold) {}
    __device__ __forceinline__ uint64_t counts() const {
      uint64_t counts = 0;
      for_each([&](bool is_above, int) { counts += is_above ? 1 : uint64_t{1} << 32; });
      return counts;
    }
    template <class Visit>
    __device__ __forceinline__ void for_each(const Visit& visit) const {
      keys.for_each([&](uint32_t key, int index) {
        const bool is_above = threshold.above(key);
        if (is_above || threshold.equal(key)) visit(is_above, index);
      });
    }
  };
  const uint32_t* row;
  int first;
  int end;

  template <class Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) const {
    for (int index = first; index < end; ++index) visit(row[index], index);
  }
};

/// The range over all threads. Uses one barrier.
__device__ __forceinline__ KeyRange block_range(SearchShared& shared, const KeyRange& mine) {
  const KeyRange warp{__reduce_min_sync(kAllLanes, mine.low),
                      __reduce_max_sync(kAllLanes, mine.high)};
  if (lane_id() == 0) shared.ranges[warp_id()] = warp;
  __syncthreads();  // the ranges of all warps are there
  const KeyRange other = shared.ranges[lane_id() % kChooseWarps];
  return {__reduce_min_sync(kAllLanes, other.low) + 1, __reduce_max_sync(kAllLanes, other.high)};
}

__device__ __forceinline__ uint32_t lanes_sum(uint32_t value) {
  return __reduce_add_sync(kAllLanes, value);
}
/// Two sums of 32 bits side by side.
__device__ __forceinline__ uint64_t lanes_sum(uint64_t value) {
  const uint32_t high = lanes_sum(static_cast<uint32_t>(value >> 32));
  return uint64_t{high} << 32 | lanes_sum(static_cast<uint32_t>(value));
}

/// Sum of `value` over the threads before this one. Uses one barrier; another one must come before
/// the next call.
template <class Count>
__device__ __forceinline__ Count block_exclusive(SearchShared& shared, Count value) {
  Count sum = value;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const Count before = __shfl_up_sync(kAllLanes, sum, step);
    if (lane_id() >= step) sum += before;
  }
  auto* sums = reinterpret_cast<Count*>(shared.sums);
  if (lane_id() == kWarp - 1) sums[warp_id()] = sum;
  __syncthreads();  // the sums of all warps are there
  static_assert(kChooseWarps <= kWarp, "a lane for the sum of each warp");
  return lanes_sum(lane_id() < warp_id() ? sums[lane_id()] : Count{0}) + sum - value;
}

/// Finds the bin at which `need` keys are reached, counted from the highest bin, and empties the
/// histogram. Every thread has neighbouring bins, the first thread the highest ones.
__device__ __forceinline__ ChoiceCut find_cut(SearchShared& shared, int need) {
  const int lowest = kBins - (static_cast<int>(threadIdx.x) + 1) * kBinsPerThread;
  auto* bins = reinterpret_cast<int4*>(shared.histogram + lowest);
  const int4 four = *bins;
  *bins = {0, 0, 0, 0};
  const int counts[kBinsPerThread] = {four.x, four.y, four.z, four.w};
  const auto mine = static_cast<uint32_t>(four.x + four.y + four.z + four.w);
  auto above = static_cast<int>(block_exclusive(shared, mine));
#pragma unroll
  for (int at = kBinsPerThread - 1; at >= 0; --at) {
    const bool is_last = lowest + at == 0;
    // True for one bin of one thread.
    if (above < need && (is_last || need <= above + counts[at]))
      shared.cut = {.digit = static_cast<uint32_t>(lowest + at),
                    .above = above,
                    .equal = is_last ? kUncounted : counts[at]};
    above += counts[at];
  }
  __syncthreads();  // the cut is there, the histogram is empty, the sums have been read
  return shared.cut;
}

/// The first digit is as fine as the range allows, so one round mostly does. The histogram is empty
/// at the beginning, since a barrier, and at the end.
template <class Keys>
__device__ __forceinline__ Threshold find_threshold(SearchShared& shared, const Keys& keys,
                                                    const KeyRange& range, int need) {
  constexpr int kWordBits = 32;
  const uint32_t span = range.high - range.low;
  int shift = max(0, kWordBits - __clz(static_cast<int>(span)) - kDigitBits);
  uint32_t low = range.low, width = span + 1;
#pragma unroll 1
  while (true) {
    const uint32_t step = 1U << shift;
    // Counts step <= key - low < width; keys below `low` wrap to distances beyond any width.
    keys.for_each([&](uint32_t key, int) {
      const uint32_t distance = key - low;
      if (distance - step < width - step) atomicAdd(shared.histogram + (distance >> shift), 1U);
    });
    __syncthreads();  // all keys are counted
    const ChoiceCut cut = find_cut(shared, need);
    low += cut.digit << shift;
    need -= cut.above;
    // When all keys of the bin are taken, the rest of their bits does not matter.
    if (shift == 0 || cut.equal == need) return {low, step, need};
    width = step;
    shift = max(0, shift - kDigitBits);
  }
}

/// Calls emit(place, index) for each key that the threshold takes: where a key goes follows from
/// counts alone. Uses one barrier.
template <class Keys, class Emit>
__device__ __forceinline__ void emit_taken(SearchShared& shared, const Keys& keys,
                                           const Threshold& threshold, const Emit& emit) {
  const typename Keys::Candidates candidates(keys, threshold);
  // Low half: keys above the threshold, high half: equal ones.
  const auto before = block_exclusive(shared, candidates.counts());
  constexpr int kHalf = sizeof(before) * 4;
  auto above = static_cast<int>(before & ((decltype(before){1} << kHalf) - 1));
  auto equal = static_cast<int>(before >> kHalf);
  candidates.for_each([&](bool is_above, int index) {
    if (is_above || equal < threshold.need) emit(above + min(equal, threshold.need), index);
    above += is_above ? 1 : 0;
    equal += is_above ? 0 : 1;
  });
}

}  // namespace tessera::cuda::device
