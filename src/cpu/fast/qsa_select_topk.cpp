// SPDX-License-Identifier: Apache-2.0
// Binary search for the threshold, one bit a pass; then one pass emits the winners.
#include "cpu/fast/qsa_select_topk.h"

#include <algorithm>
#include <bit>

#include "cpu/fast/simd.h"

namespace tessera::cpu {
namespace {

/// Keys that compare as unsigned integers the way the scores do; 0 is NaN's and no number's.
TESSERA_SIMD_CLONES
void order_keys(const float* __restrict scores, int count, uint32_t* __restrict keys) {
  constexpr uint32_t kSign = 0x80000000U;
  constexpr uint32_t kInfinity = 0x7F800000U;
#pragma omp simd
  for (int at = 0; at < count; ++at) {
    const uint32_t bits = std::bit_cast<uint32_t>(scores[at]);
    const uint32_t magnitude = bits & ~kSign;
    const uint32_t negative = magnitude == 0 ? kSign : ~bits;
    const uint32_t key = (bits & kSign) != 0 ? negative : bits | kSign;
    keys[at] = magnitude > kInfinity ? 0U : key;
  }
}

TESSERA_SIMD_CLONES
int count_from(uint32_t lowest, const uint32_t* __restrict keys, int count) {
  int found = 0;
#pragma omp simd reduction(+ : found)
  for (int at = 0; at < count; ++at) found += keys[at] >= lowest ? 1 : 0;
  return found;
}

struct Threshold {
  uint32_t key = 0;  // keys above it are accepted
  int ties = 0;      // and so many that are equal to it
};

/// Finds the k-th largest key bit by bit. A pass is a vector loop without stores, and the first
/// value that exactly k keys reach ends the search: with distinct scores about halfway.
Threshold find_threshold(const uint32_t* keys, int count, int k) {
  uint32_t key = 0;
  for (uint32_t bit = 0x80000000U; bit != 0; bit >>= 1) {
    const int found = count_from(key | bit, keys, count);
    if (found == k) return {(key | bit) - 1, 0};
    if (found > k) key |= bit;
  }
  return {key, k - count_from(key + 1, keys, count)};
}

}  // namespace

void select_top(const float* scores, int count, int k, uint32_t* keys, int32_t* ids) {
  order_keys(scores, count, keys);
  Threshold threshold = find_threshold(keys, count, k);
  // The counts of the threshold guarantee k hits, so the loops need no bound on `id`.
  int taken = 0;
  int32_t id = 0;
  for (; threshold.ties > 0 && taken < k; ++id) {
    const bool tie = keys[id] == threshold.key;
    ids[taken] = id;
    taken += keys[id] >= threshold.key ? 1 : 0;
    threshold.ties -= tie ? 1 : 0;
  }
  for (; taken < k; ++id) {
    ids[taken] = id;
    taken += keys[id] > threshold.key ? 1 : 0;
  }
}

}  // namespace tessera::cpu
