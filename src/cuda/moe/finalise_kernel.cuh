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

/// kVectorBf16 neighbouring results as they lie in memory.
template <class Result>
struct ResultVector;
template <>
struct ResultVector<float> {
  float4 low = {}, high = {};
  __device__ __forceinline__ void load(const float* from) {
    const auto* vectors = reinterpret_cast<const float4*>(from);
    low = vectors[0], high = vectors[1];
  }
  __device__ __forceinline__ void unpack(float (&out)[kVectorBf16]) const {
    out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
    out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
  }
};
template <>
struct ResultVector<Bf16> {
  uint4 raw = {};
  __device__ __forceinline__ void load(const Bf16* from) {
    raw = *reinterpret_cast<const uint4*>(from);
  }
  __device__ __forceinline__ void unpack(float (&out)[kVectorBf16]) const {
    unpack_bf16x8(raw, out);
  }
};

/// Weight of a row's result `slot`.
__device__ __forceinline__ float result_weight(const FinaliseArgs& args, int row, int slot) {
  return slot < args.top_k ? args.weights[row * args.top_k + slot]
                           : sigmoid(args.shared_logit[row]);
}
__device__ __forceinline__ size_t result_entry(const FinaliseArgs& args, int row, int slot) {
  const int index = row * (args.top_k + 1) + slot;
  return static_cast<size_t>(args.places == nullptr ? index : args.places[index]);
}

/// Columns column .. column + 7 of a row, rounded to BF16. The loads of kAhead results are under
/// way together.
template <class Result, int kAhead>
__device__ __forceinline__ uint4 add_results(const FinaliseArgs& args, int row, int column) {
  const auto* results = static_cast<const Result*>(args.results) + column;
  float sum[kVectorBf16] = {};
  for (int first = 0; first <= args.top_k; first += kAhead) {
    ResultVector<Result> vectors[kAhead];
    float weights[kAhead] = {};
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int slot = first + ahead;
      if (slot > args.top_k) continue;
      vectors[ahead].load(results +
                          result_entry(args, row, slot) * static_cast<size_t>(args.hidden));
      weights[ahead] = result_weight(args, row, slot);
    }
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      if (first + ahead > args.top_k) continue;
      float values[kVectorBf16];
      vectors[ahead].unpack(values);
#pragma unroll
      for (int lane = 0; lane < kVectorBf16; ++lane) sum[lane] += weights[ahead] * values[lane];
    }
  }
  return pack_bf16x8(sum);
}

/// Config: Result, kThreads, kAhead. One thread per kVectorBf16 columns.
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
                            column) =
      add_results<typename Config::Result, Config::kAhead>(args, row, column);
}

/// One block per branch of a row; the first branch's block also stores the result.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
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
        const uint4 result =
            add_results<typename Config::Result, Config::kAhead>(args, row, column);
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
