// SPDX-License-Identifier: Apache-2.0
// Block scores of any geometry: one warp per key, lanes stride over its dims.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/bf16.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/qsa_select/qsa_select_plan.h"
#include "cuda/qsa_select/score_key.cuh"

namespace tessera::cuda::device {

/// Sum over heads of relu(q . k), by one warp; every lane gets it.
__device__ __forceinline__ float score_any(const SelectLaunch& select, const Bf16* queries,
                                           const std::byte* page, size_t first_element) {
  const int dim = select.shape.index_dim;
  float score = 0;
  for (int head = 0; head < select.shape.index_heads; ++head) {
    float product = 0;
    for (int col = lane_id(); col < dim; col += kWarp)
      product += to_float(queries[int64_t{head} * dim + col]) *
                 load_element(select.keys.dtype, page, first_element + static_cast<size_t>(col));
    score += relu(warp_sum(product));
  }
  return score;
}

/// grid: (rows, splits of the blocks).
__global__ void __launch_bounds__(kScoreThreads)
    score_any_rows(const __grid_constant__ SelectLaunch select,
                   const __grid_constant__ Batch batch) {
  wait_for_inputs();
  const int row = select.row_begin + static_cast<int>(blockIdx.x);
  const ops::RowSpan span = batch.spans[batch.row_span[row]];
  const int visible = select.visible(span, row);
  if (visible <= select.budget) return;
  const int per_page = select.shape.blocks_per_page();
  const auto dim = static_cast<size_t>(select.shape.index_dim);
  const Bf16* queries = static_cast<const Bf16*>(select.queries) +
                        int64_t{row} * select.shape.index_heads * select.shape.index_dim;
  const int step = static_cast<int>(gridDim.y) * kScoreWarps;
  for (int block = static_cast<int>(blockIdx.y) * kScoreWarps + warp_id(); block < visible;
       block += step) {
    const std::byte* page = page_of(select.keys, span.pages, int64_t{block} * select.shape.block);
    const float score =
        score_any(select, queries, page, static_cast<size_t>(block % per_page) * dim);
    if (lane_id() == 0) select.score_row(row)[block] = score_key(score);
  }
}

}  // namespace tessera::cuda::device
