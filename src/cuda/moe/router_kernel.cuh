// SPDX-License-Identifier: Apache-2.0
// Router kernels: logits of a few rows with the gate's weights in registers and the selection in
// the same launch; products of any shape and type; the selection alone.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/flagged.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/moe/moe_plan.h"
#include "cuda/moe/router_select.cuh"
#include "cuda/moe/warp_dot.cuh"
#include "ops/moe.h"

namespace tessera::cuda::device {

__device__ __forceinline__ RouterChoice choice_of(const ops::RouterArgs& args, int row) {
  const size_t at = static_cast<size_t>(row) * static_cast<size_t>(args.top_k);
  return {.ids = args.ids + at,
          .weights = args.weights + at,
          .num_experts = args.num_experts,
          .top_k = args.top_k,
          .normalize = args.normalize};
}

inline constexpr int kSelectPerLane = moe::kRegisterExperts / kWarp;

/// What the blocks of a fused launch tell the one that selects.
struct RouterMailbox {
  uint32_t round;  // of the launch before
  uint64_t logits[moe::kFusedSelectRows][moe::kRegisterExperts];
};

/// Selection of row `row` as soon as all its logits have arrived. One warp.
__device__ __forceinline__ void select_arriving(const ops::RouterArgs& args, int row,
                                                const RouterMailbox& mailbox, uint32_t round,
                                                SelectScratch& scratch) {
  const uint64_t* logits = mailbox.logits[row];
  float values[kSelectPerLane];
  bool complete;
  do {
    complete = true;
#pragma unroll
    for (int step = 0; step < kSelectPerLane; ++step) {
      const int expert = step * kWarp + lane_id();
      if (expert >= args.num_experts) continue;
      const Flagged logit = load_flagged(logits + expert);
      values[step] = logit.value;
      complete &= logit.round == round;
    }
  } while (!__all_sync(kAllLanes, complete));
  select_experts<kSelectPerLane>(
      choice_of(args, row), scratch, [&](int step) { return values[step]; },
      [&](int expert) { return load_flagged(logits + expert).value; });
}

/// Up to 16 rows are the rows of an m16n8k16 product whose columns are eight gate rows. A warp sums
/// its slice of K, the slices are added in order: a row's bits never depend on the others. The
/// shared gate is gate row num_experts. With a mailbox the last block, which owns it, selects.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps* kWarp)
    router_fused(ops::RouterArgs args, RouterMailbox* mailbox) {
  constexpr int kHidden = Config::kHidden, kWarps = Config::kWarps;
  constexpr int kChunk = 4 * kVectorBf16;  // K covered by one 16-byte load of four lanes
  constexpr int kChunks = kHidden / kChunk / kWarps;
  constexpr int kGates = moe::kRouterTileRows, kRows = moe::kRouterPassRows, kHalf = kRows / 2;
  static_assert(kChunks * kChunk * kWarps == kHidden);
  __shared__ float sums[kWarps][kRows][kGates];
  __shared__ SelectScratch scratch[kWarps];

  const int lane = lane_id(), warp = warp_id();
  const int group = lane / 4, quad = lane % 4;
  const int slice = warp * kChunks * kChunk + quad * kVectorBf16;
  const int first_gate = static_cast<int>(blockIdx.x) * kGates;
  const int own_gate = first_gate + group;
  uint4 gates[kChunks];
  const void* base = own_gate < args.num_experts ? args.gate.data : args.shared_gate.data;
  const auto* weights = static_cast<const Bf16*>(base) + slice +
                        (own_gate < args.num_experts ? static_cast<size_t>(own_gate) * kHidden : 0);
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk)
    gates[chunk] =
        own_gate <= args.num_experts ? load_streaming(weights + chunk * kChunk) : uint4{};

  wait_for_inputs();
  allow_next_kernel();
  const int first = static_cast<int>(blockIdx.y) * kRows;
  const uint32_t round = mailbox != nullptr ? __ldcg(&mailbox->round) + 1 : 0;
  const auto load_row = [&](int row, uint4(&x)[kChunks]) {
    const auto* from =
        static_cast<const Bf16*>(args.x) + static_cast<size_t>(row) * kHidden + slice;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      x[chunk] = row < args.rows ? *reinterpret_cast<const uint4*>(from + chunk * kChunk) : uint4{};
  };
  uint4 low[kChunks], high[kChunks];
  load_row(first + group, low);
  load_row(first + group + kHalf, high);
  float sum[4] = {};
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const uint4 &a = low[chunk], &b = high[chunk], &c = gates[chunk];
    mma_m16n8k16(sum, {a.x, b.x, a.y, b.y}, {c.x, c.y});
    mma_m16n8k16(sum, {a.z, b.z, a.w, b.w}, {c.z, c.w});
  }
  *reinterpret_cast<float2*>(&sums[warp][group][2 * quad]) = {sum[0], sum[1]};
  *reinterpret_cast<float2*>(&sums[warp][group + kHalf][2 * quad]) = {sum[2], sum[3]};
  __syncthreads();  // every slice is there
  for (int item = static_cast<int>(threadIdx.x); item < kRows * kGates; item += kWarps * kWarp) {
    const int row = item / kGates, gate = item % kGates;
    const int target = first + row, expert = first_gate + gate;
    if (target >= args.rows || expert > args.num_experts) continue;
    float logit = 0;
#pragma unroll
    for (int piece = 0; piece < kWarps; ++piece) logit += sums[piece][row][gate];
    if (expert == args.num_experts) {
      args.shared_logit[target] = logit;
      continue;
    }
    if (mailbox != nullptr) store_flagged(&mailbox->logits[target][expert], {logit, round});
    args.logits[static_cast<size_t>(target) * static_cast<size_t>(args.num_experts) +
                static_cast<size_t>(expert)] = logit;
  }
  if (mailbox == nullptr || blockIdx.x != gridDim.x - 1) return;

  for (int target = warp; target < args.rows; target += kWarps)
    select_arriving(args, target, *mailbox, round, scratch[warp]);
  // Every block has read the number of the round before it sent what the selection waited for.
  __syncthreads();
  if (threadIdx.x == 0) mailbox->round = round;
}

/// y[row][out] = x[row] w[out], FP32, any size and type; a warp per product.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps* kWarp)
    router_products(const Bf16* x, ops::LinearWeight weight, float* y, int rows) {
  using Weight = typename Config::Weight;
  wait_for_inputs();
  allow_next_kernel();
  const size_t item =
      static_cast<size_t>(blockIdx.x) * Config::kWarps + static_cast<size_t>(warp_id());
  const auto outs = static_cast<size_t>(weight.out_features);
  if (item >= static_cast<size_t>(rows) * outs) return;  // the whole warp
  const auto out = static_cast<int>(item % outs);
  const int depth = weight.in_features;
  const auto row = weight_row<Weight>(
      weight.data, weight.scale, (depth + ops::kScaleBlock - 1) / ops::kScaleBlock, out, depth);
  const float sum = warp_dot(x + item / outs * static_cast<size_t>(depth), row, depth);
  if (lane_id() == 0) y[item] = sum;
}

template <class Config>
__global__ void __launch_bounds__(Config::kWarps* kWarp) router_select(ops::RouterArgs args) {
  __shared__ SelectScratch scratch[Config::kWarps];
  wait_for_inputs();
  allow_next_kernel();
  const int row = static_cast<int>(blockIdx.x) * Config::kWarps + warp_id();
  if (row >= args.rows) return;  // the whole warp
  const float* logits =
      args.logits + static_cast<size_t>(row) * static_cast<size_t>(args.num_experts);
  const auto stored = [logits](int expert) { return logits[expert]; };
  const auto held = [logits](int step) { return logits[step * kWarp + lane_id()]; };
  const RouterChoice choice = choice_of(args, row);
  if (args.num_experts <= moe::kRegisterExperts)
    select_experts<kSelectPerLane>(choice, scratch[warp_id()], held, stored);
  else
    select_experts<0>(choice, scratch[warp_id()], held, stored);
}

}  // namespace tessera::cuda::device
