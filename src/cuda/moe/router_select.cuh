// SPDX-License-Identifier: Apache-2.0
// Exact top-k of one row of router logits and its weights, by one warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device/bf16.cuh"
#include "cuda/device/reduce.cuh"

namespace tessera::cuda::device {

/// Orders logits as unsigned integers: both zeros alike, NaN below every number, 0 for no logit.
__device__ __forceinline__ uint32_t logit_key(float logit) {
  constexpr uint32_t kSign = 0x80000000U, kNanKey = 1;
  if (logit != logit) return kNanKey;
  const uint32_t bits = __float_as_uint(logit + 0.0F);  // -0 + 0 = +0
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}
__device__ __forceinline__ float logit_of_key(uint32_t key) {
  constexpr uint32_t kSign = 0x80000000U, kNan = 0x7FC00000U, kNanKey = 1;
  if (key <= kNanKey) return __uint_as_float(kNan);
  return __uint_as_float((key & kSign) != 0 ? key & ~kSign : ~key);
}

struct RouterChoice {
  int32_t* ids = nullptr;    // [top_k]
  float* weights = nullptr;  // [top_k]
  int num_experts = 0;
  int top_k = 0;
  bool normalize = true;
};

/// Best first; equal logits go to the lower id. Lane l looks at experts l, l + 32, ..; with
/// kPerLane > 0 it keeps them in registers (num_experts <= kPerLane * 32). All lanes take part.
template <int kPerLane>
__device__ void select_experts(const float* logits, const RouterChoice& choice) {
  const int lane = lane_id();
  const int per_lane = kPerLane > 0 ? kPerLane : (choice.num_experts + kWarp - 1) / kWarp;
  uint32_t kept[kPerLane > 0 ? kPerLane : 1] = {};
  // Other blocks of the same launch may have written the logits: read them past the first-level
  // cache.
  const auto load_key = [&](int step) {
    const int expert = step * kWarp + lane;
    return expert < choice.num_experts ? logit_key(__ldcg(logits + expert)) : 0U;
  };
  const auto key_at = [&](int step) {
    if constexpr (kPerLane > 0)
      return kept[step];
    else
      return load_key(step);
  };
  bool poisoned = false;
#pragma unroll
  for (int step = 0; step < per_lane; ++step) {
    const uint32_t key = load_key(step);
    if constexpr (kPerLane > 0) kept[step] = key;
    poisoned |= key == 1;
  }
  poisoned = __any_sync(kAllLanes, poisoned);

  // The next one is the best after (last_key, last_id) in the total order: nothing is removed.
  uint32_t last_key = 0xFFFFFFFFU, first_key = 0, my_key = 0;
  int last_id = -1;
  for (int slot = 0; slot < choice.top_k; ++slot) {
    uint32_t best_key = 0;
    int best_id = choice.num_experts;
#pragma unroll
    for (int step = 0; step < per_lane; ++step) {
      const uint32_t key = key_at(step);
      const int expert = step * kWarp + lane;
      const bool after = key < last_key || (key == last_key && expert > last_id);
      if (after && key > best_key) best_key = key, best_id = expert;
    }
    last_key = __reduce_max_sync(kAllLanes, best_key);
    last_id = __reduce_min_sync(kAllLanes, best_key == last_key ? best_id : choice.num_experts);
    if (slot == 0) first_key = last_key;
    if (slot == lane) my_key = last_key;
    if (lane == 0) choice.ids[slot] = last_id;
  }
  __syncwarp();  // slots beyond a warp are read again below

  const float best = logit_of_key(first_key);
  const auto logit_at = [&](int slot) {
    return slot < kWarp ? logit_of_key(my_key) : logits[choice.ids[slot]];
  };
  float total = 0;
  if (choice.normalize) {
    for (int slot = lane; slot < choice.top_k; slot += kWarp) total += expf(logit_at(slot) - best);
  } else {
#pragma unroll
    for (int step = 0; step < per_lane; ++step) {
      const uint32_t key = key_at(step);
      if (key != 0) total += expf(logit_of_key(key) - best);
    }
  }
  total = warp_sum(total);
  // A NaN that was not selected still poisons the softmax, so that it is seen.
  if (poisoned) total = logit_of_key(0);
  for (int slot = lane; slot < choice.top_k; slot += kWarp)
    choice.weights[slot] = round_bf16(expf(logit_at(slot) - best) / total);
}

}  // namespace tessera::cuda::device
