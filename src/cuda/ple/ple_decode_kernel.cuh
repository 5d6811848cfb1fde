// SPDX-License-Identifier: Apache-2.0
// The n-gram memory of decode rows in one launch: a block takes one branch of one sequence, a
// thread four neighbouring columns of all its rows. Ring entries are read and written by the thread
// that owns their columns, and the slots of the launch are not among those it reads.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/ple/ple_math.cuh"
#include "cuda/ple/ple_plan.h"

namespace tessera::cuda::device {

template <int kBlockThreads, int kGroupRows>
struct PleDecode {
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kRows = kGroupRows;  // of a sequence, worked on together
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kReach = (kPleTaps - 1) * kPleDilation;
  static_assert(kPleColumns == 4 && kWarps <= kWarp);
};

/// Sums over the block of up to kValues numbers per thread.
template <class Config, int kValues>
struct BlockSums {
  float partial[kValues][Config::kWarps];
  float total[kValues];

  /// `used` is the same in all threads, which all take part. `value(i)` for i < used.
  template <class Value>
  __device__ __forceinline__ void reduce(int used, Value&& value) {
    const int lane = lane_id(), warp = warp_id();
#pragma unroll
    for (int index = 0; index < kValues; ++index) {
      if (index >= used) break;
      const float sum = warp_sum(value(index));
      if (lane == 0) partial[index][warp] = sum;
    }
    __syncthreads();  // partial sums of all warps are there
    for (int index = warp; index < used; index += Config::kWarps) {
      const float sum = warp_sum(lane < Config::kWarps ? partial[index][lane] : 0.0F);
      if (lane == 0) total[index] = sum;
    }
    __syncthreads();  // totals are there
  }
};

template <class Config>
struct PleDecodeShared {
  BlockSums<Config, 3 * Config::kRows> gate;
  BlockSums<Config, Config::kRows> norm;
};

__device__ __forceinline__ float4 unpack_bf16x4(const uint2& raw) {
  const float2 low = unpack_bf16(raw.x), high = unpack_bf16(raw.y);
  return {low.x, low.y, high.x, high.y};
}
__device__ __forceinline__ uint2 pack_bf16x4(const float4& values) {
  return {pack_bf16(values.x, values.y), pack_bf16(values.z, values.w)};
}

/// Constants of a thread's columns.
struct PleColumns {
  float4 score;    // (1 + norm_key) (1 + norm_query)
  float4 norm;     // 1 + norm_conv
  float4 taps[4];  // of each column, oldest first

  __device__ __forceinline__ PleColumns(const ops::PleMixArgs& args, int at) {
    const auto load = [at](const float* from) {
      return __ldg(reinterpret_cast<const float4*>(from + at));
    };
    const float4 key = load(args.norm_key), query = load(args.norm_query);
    score = {(1.0F + key.x) * (1.0F + query.x), (1.0F + key.y) * (1.0F + query.y),
             (1.0F + key.z) * (1.0F + query.z), (1.0F + key.w) * (1.0F + query.w)};
    const float4 conv = load(args.norm_conv);
    norm = {1.0F + conv.x, 1.0F + conv.y, 1.0F + conv.z, 1.0F + conv.w};
#pragma unroll
    for (int column = 0; column < kPleColumns; ++column)
      taps[column] = __ldg(reinterpret_cast<const float4*>(args.conv_weight) + at + column);
  }

  /// Convolution of the four columns; `inputs` oldest first.
  __device__ __forceinline__ float4 convolve(const uint2& first, const uint2& second,
                                             const uint2& third, const uint2& current) const {
    const float4 a = unpack_bf16x4(first), b = unpack_bf16x4(second);
    const float4 c = unpack_bf16x4(third), d = unpack_bf16x4(current);
    const auto one = [](const float4& tap, float x0, float x1, float x2, float x3) {
      return __fmaf_rn(tap.w, x3, __fmaf_rn(tap.z, x2, __fmaf_rn(tap.y, x1, __fmul_rn(tap.x, x0))));
    };
    return {one(taps[0], a.x, b.x, c.x, d.x), one(taps[1], a.y, b.y, c.y, d.y),
            one(taps[2], a.z, b.z, c.z, d.z), one(taps[3], a.w, b.w, c.w, d.w)};
  }
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    ple_decode(const __grid_constant__ ops::PleMixArgs args, const Batch batch) {
  constexpr int kRows = Config::kRows, kReach = Config::kReach;
  __shared__ PleDecodeShared<Config> shared;
  const int branch = static_cast<int>(blockIdx.x) % args.branches;
  const int column = static_cast<int>(threadIdx.x) * kPleColumns;
  const bool active = column < args.hidden;
  // Threads without columns compute on those of the first thread and write nothing.
  const int at = branch * args.hidden + (active ? column : 0);
  const PleColumns constants(args, at);
  allow_next_kernel();
  wait_for_inputs();
  const ops::RowSpan span = batch.spans[static_cast<int>(blockIdx.x) / args.branches];
  const size_t width = static_cast<size_t>(args.branches) * static_cast<size_t>(args.hidden);
  const auto entry = [&](int64_t position) {
    return reinterpret_cast<uint2*>(
        reinterpret_cast<Bf16*>(ring_entry(args.conv_ring, span.slot, position)) + at);
  };

  for (int begin = 0; begin < span.num_rows; begin += kRows) {
    const int rows = min(kRows, span.num_rows - begin);
    const auto first_row = static_cast<size_t>(span.row_begin + begin);
    const int64_t position = span.position + begin;
    const auto wide_at = [&](int row) {
      return (first_row + static_cast<size_t>(row)) * width + static_cast<size_t>(at);
    };

    uint2 residual[kRows], value[kRows], input[kRows];
    {
      uint2 key[kRows];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        key[row] = residual[row] = value[row] = {};
        if (row >= rows || !active) continue;
        key[row] =
            *reinterpret_cast<const uint2*>(static_cast<const Bf16*>(args.key) + wide_at(row));
        residual[row] =
            *reinterpret_cast<const uint2*>(static_cast<const Bf16*>(args.wide) + wide_at(row));
        value[row] = *reinterpret_cast<const uint2*>(
            static_cast<const Bf16*>(args.value) +
            (first_row + static_cast<size_t>(row)) * static_cast<size_t>(args.hidden) + column);
      }
      GateSums sums[kRows];
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float4 k = unpack_bf16x4(key[row]), r = unpack_bf16x4(residual[row]);
        sums[row].add(k.x, r.x, constants.score.x);
        sums[row].add(k.y, r.y, constants.score.y);
        sums[row].add(k.z, r.z, constants.score.z);
        sums[row].add(k.w, r.w, constants.score.w);
      }
      shared.gate.reduce(3 * rows, [&](int index) {
        const GateSums& one = sums[index / 3];
        return index % 3 == 0 ? one.key : index % 3 == 1 ? one.query : one.score;
      });
    }

    // Inputs of older rows, under way during the second sum. Row r needs those 3, 6 and 9 back.
    uint2 older[kReach];
#pragma unroll
    for (int back = 0; back < kReach; ++back) {
      older[back] = {};
      const int64_t from = position - kReach + back;
      if (back % kPleDilation < rows && from >= 0 && active) older[back] = *entry(from);
    }
    float squares[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      squares[row] = 0;
      if (row >= rows) continue;
      const float* total = shared.gate.total + 3 * row;
      const float gate = gate_of({total[0], total[1], total[2]}, args.hidden, args.eps);
      const float4 v = unpack_bf16x4(value[row]);
      value[row] = pack_bf16x4({gate * v.x, gate * v.y, gate * v.z, gate * v.w});
      const float4 gated = unpack_bf16x4(value[row]);
      squares[row] = __fmaf_rn(
          gated.w, gated.w,
          __fmaf_rn(gated.z, gated.z, __fmaf_rn(gated.y, gated.y, __fmul_rn(gated.x, gated.x))));
    }
    shared.norm.reduce(rows, [&](int index) { return squares[index]; });

#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows) break;
      const float scale = inverse_rms(shared.norm.total[row], args.hidden, args.eps);
      const float4 gated = unpack_bf16x4(value[row]);
      input[row] =
          pack_bf16x4({gated.x * scale * constants.norm.x, gated.y * scale * constants.norm.y,
                       gated.z * scale * constants.norm.z, gated.w * scale * constants.norm.w});
      const uint2& three = row < kPleDilation ? older[row + 2 * kPleDilation]
                                              : input[row < kPleDilation ? 0 : row - kPleDilation];
      const float4 sum =
          constants.convolve(older[row], older[row + kPleDilation], three, input[row]);
      const uint2 delta = pack_bf16x4({delta_of(gated.x, sum.x), delta_of(gated.y, sum.y),
                                       delta_of(gated.z, sum.z), delta_of(gated.w, sum.w)});
      if (!active) continue;
      const float4 d = unpack_bf16x4(delta), r = unpack_bf16x4(residual[row]);
      *reinterpret_cast<uint2*>(static_cast<Bf16*>(args.wide) + wide_at(row)) =
          pack_bf16x4({r.x + d.x, r.y + d.y, r.z + d.z, r.w + d.w});
      if (args.delta != nullptr)
        *reinterpret_cast<uint2*>(static_cast<Bf16*>(args.delta) + wide_at(row)) = delta;
      *entry(position + row) = input[row];
    }
  }
}

}  // namespace tessera::cuda::device
