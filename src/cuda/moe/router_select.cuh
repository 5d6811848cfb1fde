// SPDX-License-Identifier: Apache-2.0
// Exact top-k of one row of router logits and its weights, by one warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device/bf16.cuh"
#include "cuda/device/reduce.cuh"

namespace tessera::cuda::device {

inline constexpr uint32_t kNanBits = 0x7FC00000U;

/// Orders logits as unsigned integers: both zeros alike, NaN below every number, 0 for no logit.
__device__ __forceinline__ uint32_t logit_key(float logit) {
  constexpr uint32_t kSign = 0x80000000U, kNanKey = 1;
  if (logit != logit) return kNanKey;
  const uint32_t bits = __float_as_uint(logit + 0.0F);  // -0 + 0 = +0
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}
__device__ __forceinline__ float logit_of_key(uint32_t key) {
  constexpr uint32_t kSign = 0x80000000U, kNanKey = 1;
  if (key <= kNanKey) return __uint_as_float(kNanBits);
  return __uint_as_float((key & kSign) != 0 ? key & ~kSign : ~key);
}

struct RouterChoice {
  int32_t* ids = nullptr;    // [top_k]
  float* weights = nullptr;  // [top_k]
  int num_experts = 0;
  int top_k = 0;
  bool normalize = true;
};

/// Of one warp, in shared memory.
struct SelectScratch {
  uint32_t keys[kWarp];
  int32_t ids[kWarp];
};

/// The keys of a row: lane l has those of experts l, l + 32, ..
template <int kPerLane>
using RowKeys = uint32_t[kPerLane];

/// The top_k best, best first, equal ones by id: slot `lane` of the warp gets its key and id.
/// False when too many keys are as good as the worst one that counts (ties): nothing is written.
/// Needs top_k <= 32 and as many experts. All lanes.
template <int kPerLane>
__device__ __forceinline__ bool select_at_once(const RowKeys<kPerLane>& keys, int top_k,
                                               SelectScratch& scratch, uint32_t& slot_key,
                                               int& slot_id) {
  const int lane = lane_id();
  uint32_t best = 0;
#pragma unroll
  for (int step = 0; step < kPerLane; ++step) best = max(best, keys[step]);
  // The top_k-th of the lanes' best is a lower bound of the worst key that counts.
  int rank = 0;
#pragma unroll
  for (int other = 0; other < kWarp; ++other) {
    const uint32_t key = __shfl_sync(kAllLanes, best, other);
    rank += key > best || (key == best && other < lane) ? 1 : 0;
  }
  const uint32_t bound_lane = __ballot_sync(kAllLanes, rank == top_k - 1);
  const uint32_t bound = __shfl_sync(kAllLanes, best, __ffs(static_cast<int>(bound_lane)) - 1);
  // Those that reach it, in the order of their ids: few more than top_k.
  int count = 0;
#pragma unroll
  for (int step = 0; step < kPerLane; ++step) {
    const bool reaches = keys[step] >= bound;
    const uint32_t all = __ballot_sync(kAllLanes, reaches);
    const int place = count + __popc(all & ((1U << lane) - 1));
    if (reaches && place < kWarp)
      scratch.keys[place] = keys[step], scratch.ids[place] = step * kWarp + lane;
    count += __popc(all);
  }
  if (count > kWarp) return false;
  __syncwarp();  // the candidates are there
  const uint32_t key = lane < count ? scratch.keys[lane] : 0;
  const int32_t id = lane < count ? scratch.ids[lane] : 0;
  int place = 0;
  for (int other = 0; other < count; ++other) {
    const uint32_t rival = scratch.keys[other];
    place += rival > key || (rival == key && other < lane) ? 1 : 0;
  }
  __syncwarp();  // everyone has read the candidates
  if (lane < count) scratch.keys[place] = key, scratch.ids[place] = id;
  __syncwarp();  // they are in order
  slot_key = scratch.keys[lane];
  slot_id = scratch.ids[lane];
  __syncwarp();  // the scratch is free again
  return true;
}

/// The same one by one, for any top_k: lane 0 writes the ids; slot `lane` gets its key. `key_at`
/// yields this lane's keys.
template <class KeyAt>
__device__ __forceinline__ void select_one_by_one(int per_lane, const RouterChoice& choice,
                                                  KeyAt&& key_at, uint32_t& first_key,
                                                  uint32_t& slot_key) {
  // The next one is the best after (last_key, last_id) in the total order: nothing is removed.
  uint32_t last_key = 0xFFFFFFFFU;
  int last_id = -1;
  for (int slot = 0; slot < choice.top_k; ++slot) {
    uint32_t best_key = 0;
    int best_id = choice.num_experts;
    for (int step = 0; step < per_lane; ++step) {
      const uint32_t key = key_at(step);
      const int expert = step * kWarp + lane_id();
      const bool after = key < last_key || (key == last_key && expert > last_id);
      if (after && key > best_key) best_key = key, best_id = expert;
    }
    last_key = __reduce_max_sync(kAllLanes, best_key);
    last_id = __reduce_min_sync(kAllLanes, best_key == last_key ? best_id : choice.num_experts);
    if (slot == 0) first_key = last_key;
    if (slot == lane_id()) slot_key = last_key;
    if (lane_id() == 0) choice.ids[slot] = last_id;
  }
  __syncwarp();  // the ids are there for all lanes
}

/// Best first; equal logits go to the lower id. With kPerLane > 0 this lane's logits are in
/// registers: `held(step)` is that of expert step * 32 + lane (num_experts <= kPerLane * 32).
/// `stored(expert)` reads any from memory. All lanes take part.
template <int kPerLane, class Held, class Stored>
__device__ void select_experts(const RouterChoice& choice, SelectScratch& scratch, Held&& held,
                               Stored&& stored) {
  const int lane = lane_id();
  const int per_lane = kPerLane > 0 ? kPerLane : (choice.num_experts + kWarp - 1) / kWarp;
  RowKeys<(kPerLane > 0 ? kPerLane : 1)> kept = {};
  const auto stored_key = [&](int step) {
    const int expert = step * kWarp + lane;
    return expert < choice.num_experts ? logit_key(stored(expert)) : 0U;
  };
  bool poisoned = false;
  if constexpr (kPerLane > 0) {
#pragma unroll
    for (int step = 0; step < kPerLane; ++step) {
      kept[step] = step * kWarp + lane < choice.num_experts ? logit_key(held(step)) : 0U;
      poisoned |= kept[step] == logit_key(__uint_as_float(kNanBits));
    }
  } else {
    for (int step = 0; step < per_lane; ++step)
      poisoned |= stored_key(step) == logit_key(__uint_as_float(kNanBits));
  }
  poisoned = __any_sync(kAllLanes, poisoned);

  uint32_t first_key = 0, my_key = 0;
  bool done = false;
  if constexpr (kPerLane > 0) {
    int my_id = 0;
    if (choice.top_k <= kWarp &&
        select_at_once<kPerLane>(kept, choice.top_k, scratch, my_key, my_id)) {
      first_key = __shfl_sync(kAllLanes, my_key, 0);
      if (lane < choice.top_k) choice.ids[lane] = my_id;
      done = true;
    }
  }
  if (!done) select_one_by_one(per_lane, choice, stored_key, first_key, my_key);

  const float best = logit_of_key(first_key);
  const auto logit_at = [&](int slot) {
    return slot < kWarp ? logit_of_key(my_key) : stored(choice.ids[slot]);
  };
  float total = 0;
  if (choice.normalize) {
    for (int slot = lane; slot < choice.top_k; slot += kWarp) total += expf(logit_at(slot) - best);
  } else if constexpr (kPerLane > 0) {
#pragma unroll
    for (int step = 0; step < kPerLane; ++step)
      if (kept[step] != 0) total += expf(logit_of_key(kept[step]) - best);
  } else {
    for (int step = 0; step < per_lane; ++step) {
      const uint32_t key = stored_key(step);
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
