// SPDX-License-Identifier: Apache-2.0
// Exact cut of a row in the total order of tokens: the best k, or the fewest best whose weights
// reach a share. Histograms over the keys narrow the place of the cut down to one key; ties there
// go by id.
#pragma once

#include "cuda/sample/sample_group.cuh"

namespace tessera::cuda::device {

/// Kept are the tokens with greater keys, and those with this key up to id `last`.
struct Cut {
  uint32_t key = kLowestKey;
  uint32_t last = 0xFFFFFFFFU;

  __device__ bool keeps(uint32_t other, uint32_t id) const {
    return other > key || (other == key && id <= last);
  }
};

/// Unnormalised probability of a logit; the best one has 1.
struct Weigher {
  float best = 0;
  float scale = 0;  // log2(e) / temperature

  __device__ Weigher(float best, float temperature) : best(best) {
    constexpr float kLog2E = 1.44269504F, kLargest = 3.402823466e38F;
    scale = fminf(kLog2E / temperature, kLargest);  // 0 times infinity must not arise
  }
  __device__ __forceinline__ float relative(float logit) const {
    return exp2f((logit - best) * scale);
  }
  __device__ static __forceinline__ uint64_t fixed(float relative) {
    return __float2ull_rn(relative * static_cast<float>(uint64_t{1} << kSampleWeightBits));
  }
  __device__ __forceinline__ uint64_t operator()(float logit) const {
    return fixed(relative(logit));
  }
};

struct CountOne {
  static constexpr bool kIsCount = true;
  __device__ __forceinline__ uint64_t operator()(float) const { return 1; }
};
struct CountWeight {
  static constexpr bool kIsCount = false;
  Weigher weigh;
  __device__ __forceinline__ uint64_t operator()(float logit) const { return weigh(logit); }
};

/// Finds cuts for one row. All threads of the group call everything together.
class CutSearch {
 public:
  __device__ CutSearch(SampleGroup& group, const Slice& slice) : group_(group), slice_(slice) {}

  /// The fewest best tokens of `within` whose measures sum to need(total of `within`), which is
  /// at least 1 and at most the total. No kept token lies below key `low` (itself not below the
  /// cut `within`) or above key `high`.
  template <class Measure, class Need>
  __device__ Cut find(const Cut& within, uint32_t low, uint32_t high, const Measure& measure,
                      Need&& need) {
    SampleShared& shared = group_.shared();
    constexpr int kKeyBits = 32;
    int bits = high == low ? 0 : kKeyBits - __clz(static_cast<int>(high - low));
    uint64_t wanted = 0, above = 0;
    for (bool first = true;; first = false) {
      const int shift = max(bits - kSampleBinBits, 0);
      count(within, low, bits, shift, measure);
      reduce();
      if (first) wanted = need(group_.sum_before(group_.blocks()));
      search(wanted, above);
      low += shared.found.bin << shift;
      above = shared.found.above;
      bits = shift;
      if (bits == 0) break;
      if (Measure::kIsCount && above + shared.found.total == wanted)
        return merged(within, low, 0xFFFFFFFFU);
    }
    const uint64_t each = measure(logit_of(low));
    const uint64_t ties = shared.found.total / each;
    const uint64_t kept = (wanted - above + each - 1) / each;
    const uint32_t last = kept >= ties ? 0xFFFFFFFFU : id_of_tie(within, low, kept);
    return merged(within, low, last);
  }

 private:
  __device__ static Cut merged(const Cut& within, uint32_t key, uint32_t last) {
    return {key, key == within.key ? min(last, within.last) : last};
  }

  /// Histogram of the block over keys low .. low + 2^bits - 1.
  template <class Measure>
  __device__ void count(const Cut& within, uint32_t low, int bits, int shift,
                        const Measure& measure) {
    SampleShared& shared = group_.shared();
    for (int bin = static_cast<int>(threadIdx.x); bin < kSampleBins; bin += kSampleThreads)
      shared.low[bin] = shared.high[bin] = 0;
    __syncthreads();  // bins are empty, and nobody reads what the last search found
    slice_.for_each([&](float logit, uint32_t id) {
      const uint32_t key = key_of(logit);
      if (key < low || uint64_t{key - low} >> bits != 0 || !within.keeps(key, id)) return;
      const uint64_t value = measure(logit);
      if (value == 0) return;
      const auto lower = static_cast<uint32_t>(value);
      const uint32_t bin = (key - low) >> shift;
      // Shared memory adds 32 bits at a time: the carry goes to the upper half.
      const uint32_t before = atomicAdd(&shared.low[bin], lower);
      if constexpr (!Measure::kIsCount) {
        const uint32_t upper =
            static_cast<uint32_t>(value >> 32) + (before + lower < before ? 1U : 0U);
        if (upper != 0) atomicAdd(&shared.high[bin], upper);
      }
    });
  }

  /// Sums the group's histograms: a block those of its share of the bins, four a thread. Then
  /// gathered[block].first is the sum over the share of each block.
  __device__ void reduce() {
    SampleShared& shared = group_.shared();
    const int share = kSampleBins / group_.blocks();
    cluster_sync();  // the histograms of all blocks are complete
    uint64_t total = 0;
    for (int at = static_cast<int>(threadIdx.x) * 4; at < share; at += kSampleThreads * 4) {
      const int bin = group_.rank() * share + at;
      uint64_t sums[4] = {};
      for (int block = 0; block < group_.blocks(); ++block) {
        const uint4 low = load_remote(remote_address(&shared.low[bin], block));
        const uint4 high = load_remote(remote_address(&shared.high[bin], block));
        sums[0] += uint64_t{high.x} << 32 | low.x;
        sums[1] += uint64_t{high.y} << 32 | low.y;
        sums[2] += uint64_t{high.z} << 32 | low.z;
        sums[3] += uint64_t{high.w} << 32 | low.w;
      }
#pragma unroll
      for (int index = 0; index < 4; ++index) {
        shared.reduced[at + index] = sums[index];
        total += sums[index];
      }
    }
    total = group_.block_sum(total);
    group_.exchange(total, 0);  // also: the histograms have been read, the sums are there
  }

  /// The highest bin at which the sum from the top, `above` included, reaches `wanted`.
  __device__ void search(uint64_t wanted, uint64_t above) {
    SampleShared& shared = group_.shared();
    const int share = kSampleBins / group_.blocks();
    int block = group_.blocks() - 1;
    for (; block > 0 && above + shared.gathered[block].first < wanted; --block)
      above += shared.gathered[block].first;
    if (warp_id() == 0) {
      // Lane 0 has the highest bins; a lane reads two at once.
      const int bins = share / kWarp;
      const int top = share - lane_id() * bins;
      const auto two_below = [&](int end) {
        return load_remote(remote_address(&shared.reduced[end - 2], block));
      };
      uint64_t mine = 0;
      for (int end = top; end > top - bins; end -= 2) {
        const uint4 two = two_below(end);
        mine += (uint64_t{two.w} << 32 | two.z) + (uint64_t{two.y} << 32 | two.x);
      }
      const uint64_t through = above + warp_prefix64(mine);
      const uint32_t reached = __ballot_sync(kAllLanes, through >= wanted);
      if (lane_id() == __ffs(static_cast<int>(reached)) - 1) {
        FoundBin found{.above = through - mine};
        for (int end = top; end > top - bins; end -= 2) {
          const uint4 two = two_below(end);
          const uint64_t upper = uint64_t{two.w} << 32 | two.z;
          const uint64_t lower = uint64_t{two.y} << 32 | two.x;
          found.total = upper;
          found.bin = static_cast<uint32_t>(block * share + end - 1);
          if (found.above + upper >= wanted) break;
          found.above += upper;
          found.total = lower;
          --found.bin;
          if (found.above + lower >= wanted) break;
          found.above += lower;
        }
        shared.found = found;
      }
    }
    __syncthreads();  // found is there
  }

  /// Id of the `kept`-th token (from 1) among those of `within` with this key.
  __device__ uint32_t id_of_tie(const Cut& within, uint32_t key, uint64_t kept) {
    SampleShared& shared = group_.shared();
    uint64_t ties = 0;
    slice_.for_each([&](float logit, uint32_t id) {
      if (key_of(logit) == key && within.keeps(key, id)) ++ties;
    });
    const uint64_t in_block = group_.block_sum(ties);
    group_.exchange(in_block, 0);
    uint64_t before = group_.sum_before(group_.rank());
    const bool here = before < kept && kept <= before + in_block;
    if (here) {
      for (int warp = 0; warp < warp_id(); ++warp) before += shared.warp_values[warp];
      if (before < kept && kept <= before + shared.warp_values[warp_id()]) {
        slice_.for_each_step([&](float logit, uint32_t id, bool valid) {
          const bool tie = valid && key_of(logit) == key && within.keeps(key, id);
          const uint32_t all = __ballot_sync(kAllLanes, tie);
          const uint64_t through = before + static_cast<uint64_t>(__popc(all));
          if (through < kept) {
            before = through;
            return true;
          }
          const uint32_t not_above = all & (0xFFFFFFFFU >> (kWarp - 1 - lane_id()));
          if (tie && before + static_cast<uint64_t>(__popc(not_above)) == kept)
            shared.found_id = id;
          return false;
        });
      }
    }
    __syncthreads();  // found_id is there
    group_.exchange(here ? uint64_t{shared.found_id} + 1 : 0, 0);
    return static_cast<uint32_t>(group_.sum_before(group_.blocks()) - 1);
  }

  SampleGroup& group_;
  const Slice& slice_;
};

}  // namespace tessera::cuda::device
