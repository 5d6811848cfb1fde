// SPDX-License-Identifier: Apache-2.0
// Router kernels: logits of a few rows with the gate's weights in registers and the selection in
// the same launch; products of any shape and type; the selection alone.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/moe/moe_plan.h"
#include "cuda/moe/router_select.cuh"
#include "cuda/moe/warp_dot.cuh"
#include "ops/moe.h"

namespace tessera::cuda::device {

/// Selection of row `row` of the launch.
__device__ __forceinline__ void select_row(const ops::RouterArgs& args, int row) {
  const size_t at = static_cast<size_t>(row) * static_cast<size_t>(args.top_k);
  const RouterChoice choice{.ids = args.ids + at,
                            .weights = args.weights + at,
                            .num_experts = args.num_experts,
                            .top_k = args.top_k,
                            .normalize = args.normalize};
  const float* logits =
      args.logits + static_cast<size_t>(row) * static_cast<size_t>(args.num_experts);
  if (args.num_experts <= moe::kRegisterExperts)
    select_experts<moe::kRegisterExperts / kWarp>(logits, choice);
  else
    select_experts<0>(logits, choice);
}

/// Eight rows per pass are the columns of an m16n8k16 product whose 16 rows are gate rows. A warp
/// sums its slice of K, the slices are added in order: a row's bits never depend on the others.
/// `arrivals` is zero between launches; the shared gate is gate row num_experts.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps* kWarp)
    router_fused(ops::RouterArgs args, unsigned* arrivals, bool select) {
  constexpr int kHidden = Config::kHidden, kWarps = Config::kWarps;
  constexpr int kChunk = 4 * kVectorBf16;  // K covered by one 16-byte load of four lanes
  constexpr int kChunks = kHidden / kChunk / kWarps;
  constexpr int kRows = moe::kRouterTileRows, kColumns = 8, kStride = kRows + 4;
  static_assert(kChunks * kChunk * kWarps == kHidden);
  __shared__ float sums[kWarps][kColumns * kStride];
  __shared__ bool is_last;

  const int lane = lane_id(), warp = warp_id();
  const int group = lane / 4, quad = lane % 4;
  const int slice = warp * kChunks * kChunk + quad * kVectorBf16;
  uint4 low[kChunks], high[kChunks];
  const auto load_row = [&](int row, uint4(&out)[kChunks]) {
    const void* base = row < args.num_experts ? args.gate.data : args.shared_gate.data;
    const auto* weights = static_cast<const Bf16*>(base) + slice +
                          (row < args.num_experts ? static_cast<size_t>(row) * kHidden : 0);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      out[chunk] = row <= args.num_experts ? load_streaming(weights + chunk * kChunk) : uint4{};
  };
  const int tile_row = static_cast<int>(blockIdx.x) * kRows;
  load_row(tile_row + group, low);
  load_row(tile_row + group + 8, high);

  wait_for_inputs();
  allow_next_kernel();
  for (int first = 0; first < args.rows; first += kColumns) {
    const int column = first + group;
    uint4 x[kChunks];
    const auto* row = static_cast<const Bf16*>(args.x) + static_cast<size_t>(column) * kHidden;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      x[chunk] = column < args.rows ? *reinterpret_cast<const uint4*>(row + slice + chunk * kChunk)
                                    : uint4{};
    float sum[4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4 &a = low[chunk], &b = high[chunk], &c = x[chunk];
      mma_m16n8k16(sum, {a.x, b.x, a.y, b.y}, {c.x, c.y});
      mma_m16n8k16(sum, {a.z, b.z, a.w, b.w}, {c.z, c.w});
    }
    __syncthreads();  // the sums of the previous pass have been read
    float* out = sums[warp] + 2 * quad * kStride + group;
    out[0] = sum[0], out[kStride] = sum[1], out[8] = sum[2], out[kStride + 8] = sum[3];
    __syncthreads();  // every slice is there
    for (int item = static_cast<int>(threadIdx.x); item < kRows * kColumns;
         item += kWarps * kWarp) {
      const int target = first + item / kRows, expert = tile_row + item % kRows;
      if (target >= args.rows || expert > args.num_experts) continue;
      float logit = 0;
#pragma unroll
      for (int piece = 0; piece < kWarps; ++piece)
        logit += sums[piece][item / kRows * kStride + item % kRows];
      if (expert < args.num_experts)
        args.logits[static_cast<size_t>(target) * static_cast<size_t>(args.num_experts) +
                    static_cast<size_t>(expert)] = logit;
      else
        args.shared_logit[target] = logit;
    }
  }
  if (!select) return;

  __threadfence();  // this thread's logits are visible before the block counts as arrived
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(arrivals, 1U) == gridDim.x - 1;
    if (is_last) *arrivals = 0;  // nobody else counts before the next launch
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();  // the other blocks' logits are visible
  for (int target = warp; target < args.rows; target += kWarps) select_row(args, target);
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
  wait_for_inputs();
  allow_next_kernel();
  const int row = static_cast<int>(blockIdx.x) * Config::kWarps + warp_id();
  if (row < args.rows) select_row(args, row);
}

}  // namespace tessera::cuda::device
