// SPDX-License-Identifier: Apache-2.0
// Radix selection: three digits narrow the threshold, one pass emits the winners.
#include "cpu/fast/qsa_select_topk.h"

#include <algorithm>
#include <bit>

#include "cpu/fast/simd.h"

namespace tessera::cpu {
namespace {

// 32 key bits are searched in three digits, the most significant first.
constexpr int kMaxDigitBits = 11;
struct Digit {
  int shift;
  uint32_t mask;
};
constexpr Digit kDigits[] = {{21, 0x7FFU}, {10, 0x7FFU}, {0, 0x3FFU}};

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

struct Threshold {
  uint32_t key = 0;  // of the last accepted score
  int ties = 0;      // how many scores equal to it are accepted
};

/// Narrows `candidates` to the digit that holds the k-th largest key; returns how many are left and
/// takes those above it off `k`.
int narrow(uint32_t* candidates, int count, Digit digit, int& k) {
  int histogram[1 << kMaxDigitBits] = {};
  for (int at = 0; at < count; ++at) ++histogram[(candidates[at] >> digit.shift) & digit.mask];
  uint32_t chosen = digit.mask;
  while (histogram[chosen] < k) k -= histogram[chosen--];
  int left = 0;
  for (int at = 0; at < count; ++at) {
    const uint32_t key = candidates[at];
    candidates[left] = key;
    left += ((key >> digit.shift) & digit.mask) == chosen ? 1 : 0;
  }
  return left;
}

Threshold find_threshold(uint32_t* candidates, int count, int k) {
  for (const Digit& digit : kDigits) count = narrow(candidates, count, digit, k);
  return {candidates[0], k};
}

}  // namespace

void select_top(const float* scores, int count, int k, uint32_t* keys, int32_t* ids) {
  order_keys(scores, count, keys);
  std::copy_n(keys, count, keys + count);
  Threshold threshold = find_threshold(keys + count, count, k);
  // The counts of the threshold guarantee k hits, so the loop needs no bound on `id`.
  int taken = 0;
  for (int32_t id = 0; taken < k; ++id) {
    const bool above = keys[id] > threshold.key;
    const bool tie = keys[id] == threshold.key && threshold.ties > 0;
    ids[taken] = id;
    taken += above || tie ? 1 : 0;
    threshold.ties -= tie ? 1 : 0;
  }
}

}  // namespace tessera::cpu
