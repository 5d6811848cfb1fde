// SPDX-License-Identifier: Apache-2.0
// The n-gram memory of prompt rows, and of shapes that the decode kernel does not take, in three
// launches: gates and inputs of the convolution; convolution and residual; newest inputs into the
// ring, which the second one still reads.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/ple/ple_math.cuh"
#include "cuda/ple/ple_plan.h"

namespace tessera::cuda::device {

/// Intermediate results in scratch memory.
struct PleBuffers {
  Bf16* inputs = nullptr;  // [rows, branches * hidden]: x
  float* gates = nullptr;  // [rows, branches]
};

struct PleVectors {
  static constexpr int kVector = kPleVector;
  static constexpr int kGateThreads = 320;
  static constexpr int kConvThreads = 128;
  static constexpr int kConvRows = 8;  // that share the weights of a thread's columns
  static constexpr int kTaps = kPleTaps;

  static __device__ __forceinline__ void load(const Bf16* from, float (&out)[kVector]) {
    unpack_bf16x8(*reinterpret_cast<const uint4*>(from), out);
  }
  static __device__ __forceinline__ void store(Bf16* to, const float (&values)[kVector]) {
    *reinterpret_cast<uint4*>(to) = pack_bf16x8(values);
  }
};

struct PleElements {
  static constexpr int kVector = 1;
  static constexpr int kGateThreads = 128;
  static constexpr int kConvThreads = 128;
  static constexpr int kConvRows = 1;
  static constexpr int kTaps = 0;  // known at run time

  static __device__ __forceinline__ void load(const Bf16* from, float (&out)[kVector]) {
    out[0] = to_float(*from);
  }
  static __device__ __forceinline__ void store(Bf16* to, const float (&values)[kVector]) {
    *to = from_float<Bf16>(values[0]);
  }
};

/// v of kVector columns, rounded.
template <class Config>
__device__ __forceinline__ void load_gated(const Bf16* value, float gate,
                                           float (&out)[Config::kVector]) {
  Config::load(value, out);
#pragma unroll
  for (float& one : out) one = round_bf16(gate * one);
}

/// One block per branch of a row.
template <class Config>
__global__ void __launch_bounds__(Config::kGateThreads)
    ple_gate(const __grid_constant__ ops::PleMixArgs args, const PleBuffers buffers) {
  constexpr int kVector = Config::kVector, kThreads = Config::kGateThreads;
  __shared__ float scratch[kThreads / kWarp];
  const size_t branch_row = blockIdx.x;
  const auto row = static_cast<int>(blockIdx.x) / args.branches;
  const int weights = static_cast<int>(blockIdx.x) % args.branches * args.hidden;
  const auto hidden = static_cast<size_t>(args.hidden);
  const auto* key = static_cast<const Bf16*>(args.key) + branch_row * hidden;
  const auto* query = static_cast<const Bf16*>(args.wide) + branch_row * hidden;
  const auto* value = static_cast<const Bf16*>(args.value) + static_cast<size_t>(row) * hidden;
  allow_next_kernel();
  wait_for_inputs();

  GateSums sums;
  const int first = static_cast<int>(threadIdx.x) * kVector;
  for (int column = first; column < args.hidden; column += kThreads * kVector) {
    float k[kVector], r[kVector];
    Config::load(key + column, k);
    Config::load(query + column, r);
#pragma unroll
    for (int index = 0; index < kVector; ++index) {
      const int at = weights + column + index;
      sums.add(k[index], r[index],
               (1.0F + __ldg(args.norm_key + at)) * (1.0F + __ldg(args.norm_query + at)));
    }
  }
  sums.key = block_sum<kThreads>(sums.key, scratch);
  sums.query = block_sum<kThreads>(sums.query, scratch);
  sums.score = block_sum<kThreads>(sums.score, scratch);
  const float gate = gate_of(sums, args.hidden, args.eps);
  float squares = 0;
  for (int column = first; column < args.hidden; column += kThreads * kVector) {
    float gated[kVector];
    load_gated<Config>(value + column, gate, gated);
#pragma unroll
    for (const float one : gated) squares = __fmaf_rn(one, one, squares);
  }
  squares = block_sum<kThreads>(squares, scratch);
  const float scale = inverse_rms(squares, args.hidden, args.eps);
  Bf16* inputs = buffers.inputs + branch_row * hidden;
  for (int column = first; column < args.hidden; column += kThreads * kVector) {
    float gated[kVector];
    load_gated<Config>(value + column, gate, gated);
#pragma unroll
    for (int index = 0; index < kVector; ++index)
      gated[index] =
          gated[index] * scale * (1.0F + __ldg(args.norm_conv + weights + column + index));
    Config::store(inputs + column, gated);
  }
  if (threadIdx.x == 0) buffers.gates[branch_row] = gate;
}

/// Input of the convolution `lag` rows before `row`, nullptr before the start of the sequence.
__device__ __forceinline__ const Bf16* input_before(const ops::PleMixArgs& args, const Bf16* inputs,
                                                    const ops::RowSpan& span, int row, int lag,
                                                    size_t width) {
  const int inner = row - span.row_begin;
  if (inner >= lag) return inputs + static_cast<size_t>(row - lag) * width;
  const int64_t position = span.position + inner - lag;
  if (position < 0) return nullptr;
  return reinterpret_cast<const Bf16*>(ring_entry(args.conv_ring, span.slot, position));
}

/// Weights of a thread's columns: in registers when the number of taps is known.
template <class Config>
struct PleConvWeights {
  float taps[Config::kVector][Config::kTaps == 0 ? 1 : Config::kTaps];
  const float* first = nullptr;  // of the first column
  int count = 0;

  __device__ __forceinline__ PleConvWeights(const ops::PleMixArgs& args, int column)
      : first(args.conv_weight + static_cast<size_t>(column) * args.conv_kernel),
        count(args.conv_kernel) {
    if constexpr (Config::kTaps == 4) {
#pragma unroll
      for (int index = 0; index < Config::kVector; ++index) {
        const float4 all = __ldg(reinterpret_cast<const float4*>(first) + index);
        taps[index][0] = all.x, taps[index][1] = all.y;
        taps[index][2] = all.z, taps[index][3] = all.w;
      }
    }
  }
  __device__ __forceinline__ float at(int index, int tap) const {
    if constexpr (Config::kTaps == 0)
      return __ldg(first + index * count + tap);
    else
      return taps[index][tap];
  }
};

/// blockIdx.y cuts the columns, blockIdx.x the rows.
template <class Config>
__global__ void __launch_bounds__(Config::kConvThreads)
    ple_convolve(const __grid_constant__ ops::PleMixArgs args, const Batch batch,
                 const PleBuffers buffers) {
  constexpr int kVector = Config::kVector;
  const int width = args.branches * args.hidden;
  const int column =
      (static_cast<int>(blockIdx.y) * Config::kConvThreads + static_cast<int>(threadIdx.x)) *
      kVector;
  const bool active = column < width;
  const PleConvWeights<Config> weights(args, active ? column : 0);
  allow_next_kernel();
  wait_for_inputs();
  if (!active) return;
  const int branch = column / args.hidden;
  const int begin = static_cast<int>(blockIdx.x) * Config::kConvRows;
  const int end = min(begin + Config::kConvRows, batch.num_rows);
  const int taps = Config::kTaps == 0 ? args.conv_kernel : Config::kTaps;
  for (int row = begin; row < end; ++row) {
    const ops::RowSpan span = batch.spans[batch.row_span[row]];
    float sums[kVector] = {};
#pragma unroll
    for (int tap = 0; tap < taps; ++tap) {
      const int lag = (taps - 1 - tap) * args.dilation;
      const Bf16* input =
          input_before(args, buffers.inputs, span, row, lag, static_cast<size_t>(width));
      if (input == nullptr) continue;
      float x[kVector];
      Config::load(input + column, x);
#pragma unroll
      for (int index = 0; index < kVector; ++index)
        sums[index] = __fmaf_rn(weights.at(index, tap), x[index], sums[index]);
    }
    const size_t row_index = static_cast<size_t>(row);
    const size_t at = row_index * static_cast<size_t>(width) + static_cast<size_t>(column);
    const float gate =
        buffers.gates[row_index * static_cast<size_t>(args.branches) + static_cast<size_t>(branch)];
    const auto* value = static_cast<const Bf16*>(args.value) +
                        row_index * static_cast<size_t>(args.hidden) + column -
                        branch * args.hidden;
    float delta[kVector], residual[kVector];
    load_gated<Config>(value, gate, delta);
    Config::load(static_cast<const Bf16*>(args.wide) + at, residual);
#pragma unroll
    for (int index = 0; index < kVector; ++index) {
      delta[index] = round_bf16(delta_of(delta[index], sums[index]));
      residual[index] += delta[index];
    }
    Config::store(static_cast<Bf16*>(args.wide) + at, residual);
    if (args.delta != nullptr) Config::store(static_cast<Bf16*>(args.delta) + at, delta);
  }
}

/// One block per ring slot (blockIdx.x) of a sequence (blockIdx.y): the newest row that belongs
/// there.
template <class Config>
__global__ void __launch_bounds__(Config::kConvThreads)
    ple_store_ring(const __grid_constant__ ops::PleMixArgs args, const Batch batch,
                   const PleBuffers buffers) {
  allow_next_kernel();
  wait_for_inputs();
  const ops::RowSpan span = batch.spans[blockIdx.y];
  const int row = span.num_rows - 1 - static_cast<int>(blockIdx.x);
  if (row < 0) return;
  const int width = args.branches * args.hidden;
  const Bf16* from =
      buffers.inputs + static_cast<size_t>(span.row_begin + row) * static_cast<size_t>(width);
  auto* to = reinterpret_cast<Bf16*>(ring_entry(args.conv_ring, span.slot, span.position + row));
  for (int column = static_cast<int>(threadIdx.x) * Config::kVector; column < width;
       column += Config::kConvThreads * Config::kVector) {
    if constexpr (Config::kVector == kPleVector)
      *reinterpret_cast<uint4*>(to + column) = *reinterpret_cast<const uint4*>(from + column);
    else
      to[column] = from[column];
  }
}

}  // namespace tessera::cuda::device
