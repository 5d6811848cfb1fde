// SPDX-License-Identifier: Apache-2.0
// Scores as integers whose order is the order of the selection, and the lengths that bound them.
#pragma once

#include <cstdint>

#include "cuda/device/batch.cuh"
#include "cuda/qsa_select/qsa_select_plan.h"
#include "ops/qsa.h"

namespace tessera::cuda::device {

/// 0 marks no score at all, 1 a NaN; a number, never negative, follows by its bits. The largest key
/// is that of infinity and stays below 2^31.
inline constexpr uint32_t kNoScore = 0;
inline constexpr uint32_t kNanScore = 1;
inline constexpr uint32_t kFirstNumber = 2;
inline constexpr uint32_t kLastKey = 0x7F800000U + kFirstNumber;

/// NOTE: the scores leave out the factor 1 / sqrt(Di): it is the same for all and changes no order.
__device__ __forceinline__ uint32_t score_key(float score) {
  return isnan(score) ? kNanScore : __float_as_uint(score) + kFirstNumber;
}

/// max(0, x) that keeps NaN and gives +0 for -0.
__device__ __forceinline__ float relu(float x) { return x <= 0.0F ? 0.0F : x; }

/// Complete blocks that the token at `position` sees, never more than the plan has room for.
/// NOTE: a division of 64 bits takes a hundred instructions, and positions fit in 32.
__device__ __forceinline__ int visible_blocks(int64_t position, int block, int64_t capacity) {
  const uint32_t visible = static_cast<uint32_t>(position + 1) / static_cast<uint32_t>(block);
  return static_cast<int>(min(visible, static_cast<uint32_t>(capacity)));
}

/// What the selection kernels work on: rows [row_begin, row_end) of the launch, whose scores lie
/// one row after the other from the first. Tensor core kernels also write the largest key of each
/// group of kGroupKeys, and kNoScore for keys that a row does not see in a group that it sees.
struct SelectLaunch {
  ops::QsaShape shape;
  ops::PageRef keys;
  const void* queries = nullptr;  // [rows, Hi, Di] BF16
  uint32_t* scores = nullptr;     // [row_end - row_begin, stride]
  uint32_t* tops = nullptr;       // [row_end - row_begin, top_stride()]
  int32_t* blocks = nullptr;      // [rows, budget]
  int32_t* counts = nullptr;      // [rows]
  int budget = 0;
  int row_begin = 0;
  int row_end = 0;
  int64_t capacity = 0;
  int64_t stride = 0;

  __device__ uint32_t* score_row(int row) const { return scores + (row - row_begin) * stride; }
  __device__ int64_t top_stride() const { return stride / kGroupKeys; }
  __device__ uint32_t* top_row(int row) const { return tops + (row - row_begin) * top_stride(); }
  __device__ int32_t* block_row(int row) const { return blocks + int64_t{row} * budget; }
  __device__ int visible(const ops::RowSpan& span, int row) const {
    return visible_blocks(span.position + row - span.row_begin, shape.block, capacity);
  }
};

}  // namespace tessera::cuda::device
