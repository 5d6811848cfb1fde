// SPDX-License-Identifier: Apache-2.0
// Scores as integers whose order is the order of the selection, and the lengths that bound them.
#pragma once

#include <cstdint>

#include "cuda/device/batch.cuh"
#include "ops/qsa.h"

namespace tessera::cuda::device {

/// 0 marks no score at all, 1 a NaN; a number, never negative, follows by its bits. The largest key
/// is that of infinity and stays below 2^31.
inline constexpr uint32_t kNoScore = 0;
inline constexpr uint32_t kNanScore = 1;
inline constexpr uint32_t kFirstNumber = 2;

/// NOTE: the scores leave out the factor 1 / sqrt(Di): it is the same for all and changes no order.
__device__ __forceinline__ uint32_t score_key(float score) {
  return isnan(score) ? kNanScore : __float_as_uint(score) + kFirstNumber;
}

/// max(0, x) that keeps NaN and gives +0 for -0.
__device__ __forceinline__ float relu(float x) { return x <= 0.0F ? 0.0F : x; }

/// Complete blocks that the token at `position` sees, never more than the plan has room for.
__device__ __forceinline__ int visible_blocks(int64_t position, int block, int64_t capacity) {
  const int64_t visible = (position + 1) / block;
  return static_cast<int>(visible < capacity ? visible : capacity);
}

/// What the selection kernels work on: rows [row_begin, row_end) of the launch, whose scores lie
/// one row after the other from the first.
struct SelectLaunch {
  ops::QsaShape shape;
  ops::PageRef keys;
  const void* queries = nullptr;  // [rows, Hi, Di] BF16
  uint32_t* scores = nullptr;     // [row_end - row_begin, stride]
  int32_t* blocks = nullptr;      // [rows, budget]
  int32_t* counts = nullptr;      // [rows]
  int budget = 0;
  int row_begin = 0;
  int row_end = 0;
  int64_t capacity = 0;
  int64_t stride = 0;

  __device__ uint32_t* score_row(int row) const { return scores + (row - row_begin) * stride; }
  __device__ int visible(const ops::RowSpan& span, int row) const {
    return visible_blocks(span.position + row - span.row_begin, shape.block, capacity);
  }
};

}  // namespace tessera::cuda::device
