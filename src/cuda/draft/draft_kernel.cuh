// SPDX-License-Identifier: Apache-2.0
// The two norms that the draft layer reads, one block each. The order of a sum depends on the width
// alone, so a row has the same bits in every launch.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/draft/draft_plan.h"
#include "cuda/embed/table_row.cuh"

namespace tessera::cuda::device {

/// What a block works on: the branches of a row, with one mean over all of them, or its token.
struct DraftBlock {
  int row;
  bool is_token;
  int width;

  __device__ explicit DraftBlock(const ops::DraftInputArgs& args)
      : row(static_cast<int>(blockIdx.x) / kDraftRowBlocks),
        is_token(blockIdx.x % kDraftRowBlocks != 0),
        width(is_token ? args.table.in_features : args.branches * args.table.in_features) {}

  __device__ const float* norm(const ops::DraftInputArgs& args) const {
    return is_token ? args.norm_embedding : args.norm_hidden;
  }
  __device__ Bf16* out(const ops::DraftInputArgs& args) const {
    return static_cast<Bf16*>(is_token ? args.embedded : args.normed) +
           static_cast<size_t>(row) * static_cast<size_t>(width);
  }
  /// The branches, or the token's row of a BF16 table: after wait_for_inputs().
  __device__ const Bf16* source(const ops::DraftInputArgs& args) const {
    const int at = is_token ? args.ids[row] : args.wide_rows[row];
    return static_cast<const Bf16*>(is_token ? args.table.data : args.wide) +
           static_cast<size_t>(at) * static_cast<size_t>(width);
  }
  /// The logits that make the sum of both products a plain one.
  __device__ void write_inject(const ops::DraftInputArgs& args) const {
    if (!is_token) return;
    float* inject = args.inject + static_cast<size_t>(row) * static_cast<size_t>(args.branches);
    for (int branch = static_cast<int>(threadIdx.x); branch < args.branches;
         branch += static_cast<int>(blockDim.x))
      inject[branch] = 0;
  }
};

/// Thread t owns vectors t, t + kThreads, ..
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    draft_input_vectors(const __grid_constant__ ops::DraftInputArgs args) {
  __shared__ float scratch[Tile::kThreads / kWarp];
  const DraftBlock block(args);
  const int first = static_cast<int>(threadIdx.x) * kVectorBf16;
  constexpr int kStride = Tile::kThreads * kVectorBf16;
  const float* norm = block.norm(args);
  float4 weights[Tile::kVectors][2] = {};
#pragma unroll
  for (int vector = 0; vector < Tile::kVectors; ++vector) {
    const int column = first + vector * kStride;
    if (column >= block.width) continue;
    const auto* from = reinterpret_cast<const float4*>(norm + column);
    weights[vector][0] = from[0], weights[vector][1] = from[1];
  }
  allow_next_kernel();
  wait_for_inputs();

  const Bf16* source = block.source(args);
  uint4 raw[Tile::kVectors] = {};
#pragma unroll
  for (int vector = 0; vector < Tile::kVectors; ++vector) {
    const int column = first + vector * kStride;
    if (column < block.width) raw[vector] = *reinterpret_cast<const uint4*>(source + column);
  }
  float square = 0;
#pragma unroll
  for (int vector = 0; vector < Tile::kVectors; ++vector) {
    float values[kVectorBf16];
    unpack_bf16x8(raw[vector], values);
#pragma unroll
    for (int lane = 0; lane < kVectorBf16; ++lane) square += values[lane] * values[lane];
  }
  const float mean = block_sum<Tile::kThreads>(square, scratch) / static_cast<float>(block.width);
  const float scale = rsqrtf(mean + args.eps);
  Bf16* out = block.out(args);
#pragma unroll
  for (int vector = 0; vector < Tile::kVectors; ++vector) {
    const int column = first + vector * kStride;
    if (column >= block.width) continue;
    const float4 low = weights[vector][0], high = weights[vector][1];
    const float own[kVectorBf16] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float values[kVectorBf16];
    unpack_bf16x8(raw[vector], values);
#pragma unroll
    for (int lane = 0; lane < kVectorBf16; ++lane) values[lane] *= scale * (1.0F + own[lane]);
    *reinterpret_cast<uint4*>(out + column) = pack_bf16x8(values);
  }
  block.write_inject(args);
}

/// Any width and table: a thread reads every kThreads-th column, and again for the result.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    draft_input_any(const __grid_constant__ ops::DraftInputArgs args) {
  __shared__ float scratch[Tile::kThreads / kWarp];
  const DraftBlock block(args);
  allow_next_kernel();
  wait_for_inputs();
  const auto write = [&](const auto& load) {
    float square = 0;
    for (int col = static_cast<int>(threadIdx.x); col < block.width; col += Tile::kThreads) {
      const float value = load(col);
      square += value * value;
    }
    const float mean = block_sum<Tile::kThreads>(square, scratch) / static_cast<float>(block.width);
    const float scale = rsqrtf(mean + args.eps);
    const float* norm = block.norm(args);
    Bf16* out = block.out(args);
    for (int col = static_cast<int>(threadIdx.x); col < block.width; col += Tile::kThreads)
      out[col] = from_float<Bf16>(load(col) * (scale * (1.0F + norm[col])));
  };
  if (block.is_token) {
    const TableRow token(args.table, args.ids[block.row]);
    write([&](int col) { return token.at(col); });
  } else {
    const Bf16* branches = block.source(args);
    write([&](int col) { return to_float(branches[col]); });
  }
  block.write_inject(args);
}

}  // namespace tessera::cuda::device
