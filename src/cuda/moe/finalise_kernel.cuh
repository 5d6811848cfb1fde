// SPDX-License-Identifier: Apache-2.0
// The last step of the experts: a row's results are added with their weights in router order, the
// shared one last, and go on into the residual branches and the next norm in the same kernel.
#pragma once

#include "cuda/combine/combine_device.cuh"
#include "cuda/device/bf16.cuh"
#include "cuda/device/pdl.cuh"
#include "ops/mixer.h"

namespace tessera::cuda::device {

struct FinaliseArgs {
  const void* results = nullptr;        // [entries, hidden], FP32 or BF16
  const int32_t* places = nullptr;      // [rows, slots] entry of each result; nullptr: in order
  const float* weights = nullptr;       // [rows, top_k]
  const float* shared_logit = nullptr;  // [rows]
  Bf16* out = nullptr;                  // [rows, hidden]
  int rows = 0;
  int top_k = 0;
  int hidden = 0;
};

__device__ __forceinline__ void load_results(const float* from, float (&out)[kVectorBf16]) {
  const auto* vectors = reinterpret_cast<const float4*>(from);
  const float4 low = vectors[0], high = vectors[1];
  out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
  out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
}
__device__ __forceinline__ void load_results(const Bf16* from, float (&out)[kVectorBf16]) {
  unpack_bf16x8(*reinterpret_cast<const uint4*>(from), out);
}

/// Weight of a row's result `slot`.
__device__ __forceinline__ float result_weight(const FinaliseArgs& args, int row, int slot) {
  return slot < args.top_k ? args.weights[row * args.top_k + slot]
                           : sigmoid(args.shared_logit[row]);
}
__device__ __forceinline__ size_t result_entry(const FinaliseArgs& args, int row, int slot) {
  const int index = row * (args.top_k + 1) + slot;
  return static_cast<size_t>(args.places == nullptr ? index : args.places[index]);
}

/// Columns column .. column + 7 of a row, rounded to BF16.
template <class Result>
__device__ __forceinline__ uint4 add_results(const FinaliseArgs& args, int row, int column) {
  constexpr int kAhead = 4;  // results whose loads are under way together
  const auto* results = static_cast<const Result*>(args.results) + column;
  float sum[kVectorBf16] = {};
#pragma unroll kAhead
  for (int slot = 0; slot <= args.top_k; ++slot) {
    float values[kVectorBf16];
    load_results(results + result_entry(args, row, slot) * static_cast<size_t>(args.hidden),
                 values);
    const float weight = result_weight(args, row, slot);
#pragma unroll
    for (int lane = 0; lane < kVectorBf16; ++lane) sum[lane] += weight * values[lane];
  }
  return pack_bf16x8(sum);
}

/// Config: Result, kThreads. One thread per kVectorBf16 columns.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) finalise(FinaliseArgs args) {
  wait_for_inputs();
  allow_next_kernel();
  const int vectors = args.hidden / kVectorBf16;
  const int64_t index = int64_t{blockIdx.x} * Config::kThreads + threadIdx.x;
  const auto row = static_cast<int>(index / vectors);
  if (row >= args.rows) return;
  const int column = static_cast<int>(index % vectors) * kVectorBf16;
  *reinterpret_cast<uint4*>(args.out + static_cast<size_t>(row) * static_cast<size_t>(args.hidden) +
                            column) = add_results<typename Config::Result>(args, row, column);
}

/// One block per branch of a row; the first branch's block also stores the result.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    finalise_combine(FinaliseArgs args, ops::CombineArgs combine) {
  __shared__ float scratch[Config::kThreads / kWarp];
  const auto branch_row = static_cast<int>(blockIdx.x);
  const int row = branch_row / combine.branches, branch = branch_row % combine.branches;
  const BranchUpdate<Config::kThreads> update(combine, branch);
  wait_for_inputs();
  allow_next_kernel();
  Bf16* out = args.out + static_cast<size_t>(row) * static_cast<size_t>(args.hidden);
  update(
      combine, row,
      [&](int column, float(&values)[kVectorBf16]) {
        const uint4 result = add_results<typename Config::Result>(args, row, column);
        if (branch == 0) *reinterpret_cast<uint4*>(out + column) = result;
        unpack_bf16x8(result, values);
      },
      scratch);
}

/// Any hidden size, FP32 results in order: one thread per column.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads) finalise_scalar(FinaliseArgs args) {
  wait_for_inputs();
  allow_next_kernel();
  const int64_t index = int64_t{blockIdx.x} * Config::kThreads + threadIdx.x;
  const auto row = static_cast<int>(index / args.hidden);
  if (row >= args.rows) return;
  const auto* results = static_cast<const float*>(args.results) + index % args.hidden;
  float sum = 0;
  for (int slot = 0; slot <= args.top_k; ++slot)
    sum += result_weight(args, row, slot) *
           results[result_entry(args, row, slot) * static_cast<size_t>(args.hidden)];
  args.out[index] = from_float<Bf16>(sum);
}

}  // namespace tessera::cuda::device
