// SPDX-License-Identifier: Apache-2.0
// Experts of any size and weight type: a warp per dot product. Small models and tests.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/moe/moe_weights.h"
#include "cuda/moe/silu_product.cuh"
#include "cuda/moe/warp_dot.cuh"

namespace tessera::cuda::device {

/// Either the routed experts of all rows, or the shared expert of all rows (ids == nullptr).
struct GenericArgs {
  const Bf16* x = nullptr;       // [rows, hidden]
  const int32_t* ids = nullptr;  // [rows, top_k]
  moe::ExpertStack experts;
  Bf16* inner = nullptr;     // [rows, slots, inner_stride] silu(gate) * up
  float* results = nullptr;  // [rows, slots, hidden]
  int rows = 0;
  int top_k = 0;
  int hidden = 0;
  int width = 0;
  int inner_stride = 0;
};

/// What one warp computes: output `column` of one expert of one row.
struct GenericItem {
  int row = 0;
  int expert = 0;
  size_t entry = 0;  // row * slots + slot
  int column = 0;
  bool valid = false;
};

template <class Config>
__device__ __forceinline__ GenericItem generic_item(const GenericArgs& args, int columns) {
  const int64_t index = int64_t{blockIdx.x} * Config::kWarps + warp_id();
  const bool routed = args.ids != nullptr;
  const int per_row = routed ? args.top_k : 1;
  const int64_t pair = index / columns;
  if (pair >= int64_t{args.rows} * per_row) return {};
  const auto row = static_cast<int>(pair / per_row);
  const int slot = routed ? static_cast<int>(pair % per_row) : args.top_k;
  return {.row = row,
          .expert = routed ? args.ids[pair] : 0,
          .entry = static_cast<size_t>(row) * static_cast<size_t>(args.top_k + 1) +
                   static_cast<size_t>(slot),
          .column = static_cast<int>(index % columns),
          .valid = true};
}

template <class Weight>
__device__ __forceinline__ WeightRow<Weight> expert_row(const moe::MatrixStack& stack, int expert,
                                                        int row, int depth) {
  const float* scale = sizeof(Weight) == 1 ? stack.scale + expert * stack.scale_stride : nullptr;
  return weight_row<Weight>(stack.data + expert * stack.stride, scale, stack.scale_cols, row,
                            depth);
}

/// Config: Weight, kWarps.
template <class Config>
__global__ void __launch_bounds__(Config::kWarps* kWarp) generic_up(GenericArgs args) {
  using Weight = typename Config::Weight;
  wait_for_inputs();
  const GenericItem item = generic_item<Config>(args, args.width);
  if (!item.valid) return;  // the whole warp
  const Bf16* x = args.x + static_cast<size_t>(item.row) * static_cast<size_t>(args.hidden);
  const auto gate_row =
      expert_row<Weight>(args.experts.gate, item.expert, item.column, args.hidden);
  const auto up_row = expert_row<Weight>(args.experts.up, item.expert, item.column, args.hidden);
  const float gate = warp_dot(x, gate_row, args.hidden);
  const float up = warp_dot(x, up_row, args.hidden);
  if (lane_id() == 0)
    args.inner[item.entry * static_cast<size_t>(args.inner_stride) +
               static_cast<size_t>(item.column)] = from_float<Bf16>(silu_product(gate, up));
}

template <class Config>
__global__ void __launch_bounds__(Config::kWarps* kWarp) generic_down(GenericArgs args) {
  using Weight = typename Config::Weight;
  wait_for_inputs();
  const GenericItem item = generic_item<Config>(args, args.hidden);
  if (!item.valid) return;  // the whole warp
  const Bf16* inner = args.inner + item.entry * static_cast<size_t>(args.inner_stride);
  const auto row = expert_row<Weight>(args.experts.down, item.expert, item.column, args.width);
  const float result = warp_dot(inner, row, args.width);
  if (lane_id() == 0)
    args.results[item.entry * static_cast<size_t>(args.hidden) + static_cast<size_t>(item.column)] =
        result;
}

}  // namespace tessera::cuda::device
