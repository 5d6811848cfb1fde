// SPDX-License-Identifier: Apache-2.0
// Products of any size and weight type: one warp per output, lanes share K in a fixed way.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/linear/linear_plan.h"

namespace tessera::cuda {

struct GenericLinearArgs {
  const device::Bf16* x = nullptr;  // [rows, weight.in_features]
  ops::LinearWeight weight;
  void* y = nullptr;  // [rows, weight.out_features]
  DType y_dtype = DType::kBF16;
  int rows = 0;
};

/// Element `col` of weight row `row`, scaled.
__device__ __forceinline__ float weight_element(const ops::LinearWeight& weight, int row, int col) {
  const size_t index = static_cast<size_t>(row) * weight.in_features + col;
  const float stored = device::load_element(weight.dtype, weight.data, index);
  if (weight.dtype != DType::kF8E4M3 || weight.scale == nullptr) return stored;
  const size_t scale_row = static_cast<size_t>(row / ops::kScaleBlock) *
                           ((weight.in_features + ops::kScaleBlock - 1) / ops::kScaleBlock);
  return stored * weight.scale[scale_row + col / ops::kScaleBlock];
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    generic_linear(const __grid_constant__ GenericLinearArgs args) {
  device::wait_for_inputs();
  const int output = static_cast<int>(blockIdx.x) * Config::kWarps + device::warp_id();
  if (output >= args.weight.out_features) return;
  const int first_row = static_cast<int>(blockIdx.y) * Config::kRows;
  const int count = min(args.rows - first_row, Config::kRows);
  const int ins = args.weight.in_features;
  const device::Bf16* x = args.x + static_cast<size_t>(first_row) * ins;
  float sums[Config::kRows] = {};
  for (int col = device::lane_id(); col < ins; col += device::kWarp) {
    const float weight = weight_element(args.weight, output, col);
#pragma unroll
    for (int row = 0; row < Config::kRows; ++row)
      if (row < count)
        sums[row] =
            fmaf(device::to_float(x[static_cast<size_t>(row) * ins + col]), weight, sums[row]);
  }
#pragma unroll
  for (int row = 0; row < Config::kRows; ++row) {
    const float total = device::warp_sum(sums[row]);
    if (device::lane_id() == 0 && row < count)
      device::store_element(
          args.y_dtype, args.y,
          static_cast<size_t>(first_row + row) * args.weight.out_features + output, total);
  }
}

}  // namespace tessera::cuda
