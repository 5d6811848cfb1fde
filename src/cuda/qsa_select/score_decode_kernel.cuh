// SPDX-License-Identifier: Apache-2.0
// Block scores of decoded rows on tensor cores: up to six rows of a sequence share each key.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/bf16.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/qsa_select/qsa_select_plan.h"
#include "cuda/qsa_select/score_key.cuh"

namespace tessera::cuda::device {

/// The 16 keys of a page are the rows of an MMA, two query rows with their four heads its columns.
/// A column's result depends on nothing but its query and the keys, so neither the rows that share
/// a launch nor the way pages are dealt out can change a score.
struct DecodeScore : FastScoreShape {
  static constexpr int kGroupRows = 6;
  static constexpr int kTileRows = 2;
  static constexpr int kTiles = kGroupRows / kTileRows;
  static constexpr int kThreads = 192;  // leaves each 168 registers for queries and keys
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kChunks = kDim / (4 * kVectorBf16);  // 16 bytes of each lane of a quad
};

/// Dims that lane t of a quad holds in its chunk: sums over dims do not care which lane has which,
/// as long as queries and keys agree, so both are loaded 16 bytes at a time.
__device__ __forceinline__ int lane_dim(int chunk) {
  return (chunk * 4 + lane_id() % 4) * kVectorBf16;
}

struct QueryTiles {
  uint4 words[DecodeScore::kTiles][DecodeScore::kChunks];

  /// Rows [row, row + count) of the launch; absent rows are zero.
  __device__ __forceinline__ void load(const Bf16* queries, int row, int count) {
    const int column = lane_id() / 4;
#pragma unroll
    for (int tile = 0; tile < DecodeScore::kTiles; ++tile) {
      const int inner = tile * DecodeScore::kTileRows + column / DecodeScore::kHeads;
      const Bf16* query =
          queries + (int64_t{row + inner} * DecodeScore::kHeads + column % DecodeScore::kHeads) *
                        DecodeScore::kDim;
#pragma unroll
      for (int chunk = 0; chunk < DecodeScore::kChunks; ++chunk)
        words[tile][chunk] = inner < count
                                 ? *reinterpret_cast<const uint4*>(query + lane_dim(chunk))
                                 : uint4{0, 0, 0, 0};
    }
  }
};

/// Scores of one page for the rows of a group, to scores[row] + first key of the page.
__device__ __forceinline__ void score_page(const Bf16* keys, const QueryTiles& queries,
                                           uint32_t* scores, int stride, int rows) {
  const int group = lane_id() / 4, quad = lane_id() % 4;
  constexpr int kHalfKeys = DecodeScore::kPageKeys / 2;
  uint4 low[DecodeScore::kChunks], high[DecodeScore::kChunks];
#pragma unroll
  for (int chunk = 0; chunk < DecodeScore::kChunks; ++chunk) {
    const Bf16* key = keys + group * DecodeScore::kDim + lane_dim(chunk);
    low[chunk] = load_streaming(key);
    high[chunk] = load_streaming(key + kHalfKeys * DecodeScore::kDim);
  }
  float products[DecodeScore::kTiles][4] = {};
#pragma unroll
  for (int chunk = 0; chunk < DecodeScore::kChunks; ++chunk)
#pragma unroll
    for (int tile = 0; tile < DecodeScore::kTiles; ++tile) {
      const uint4& query = queries.words[tile][chunk];
      mma_m16n8k16(products[tile], {low[chunk].x, high[chunk].x, low[chunk].y, high[chunk].y},
                   {query.x, query.y});
      mma_m16n8k16(products[tile], {low[chunk].z, high[chunk].z, low[chunk].w, high[chunk].w},
                   {query.z, query.w});
    }
#pragma unroll
  for (int tile = 0; tile < DecodeScore::kTiles; ++tile) {
    // A lane has two heads of keys `group` and `group` + 8, its neighbour the other two heads.
    const float* product = products[tile];
    float low_key = relu(product[0]) + relu(product[1]);
    float high_key = relu(product[2]) + relu(product[3]);
    low_key += __shfl_xor_sync(kAllLanes, low_key, 1);
    high_key += __shfl_xor_sync(kAllLanes, high_key, 1);
    const bool takes_high = quad % 2 != 0;
    const int row = tile * DecodeScore::kTileRows + quad / 2;
    if (row < rows)
      scores[row * stride + group + (takes_high ? kHalfKeys : 0)] =
          score_key(takes_high ? high_key : low_key);
  }
}

/// Pages [page, page + count) for the rows of group `group` of the span.
__device__ __forceinline__ void score_pages(const SelectLaunch& select, const ops::RowSpan& span,
                                            int group, int page, int count) {
  const int inner = group * DecodeScore::kGroupRows;
  const int row = span.row_begin + inner;
  const int rows = min(DecodeScore::kGroupRows, span.num_rows - inner);
  QueryTiles queries;
  queries.load(static_cast<const Bf16*>(select.queries), row, rows);
  uint32_t* scores = select.score_row(row) + int64_t{page} * DecodeScore::kPageKeys;
  for (int base = 0; base < count; base += kWarp) {
    const int ahead = min(kWarp, count - base);
    const int32_t id = lane_id() < ahead ? span.pages[page + base + lane_id()] : 0;
#pragma unroll 1
    for (int at = 0; at < ahead; ++at) {
      const auto page_id = static_cast<size_t>(__shfl_sync(kAllLanes, id, at));
      const auto* keys = reinterpret_cast<const Bf16*>(
          select.keys.pool + page_id * select.keys.page_stride + select.keys.offset);
      score_page(keys, queries, scores, static_cast<int>(select.stride), rows);
      scores += DecodeScore::kPageKeys;
    }
  }
}

__device__ __forceinline__ int pages_of(const SelectLaunch& select, const ops::RowSpan& span) {
  const int visible = select.visible(span, span.row_begin + span.num_rows - 1);
  return visible <= select.budget ? 0 : (visible - 1) / DecodeScore::kPageKeys + 1;
}

/// Pages to score, once for each group of rows; none when the span's rows take all their blocks.
__device__ __forceinline__ int work_of(const SelectLaunch& select, const Batch& batch, int span) {
  if (span >= batch.num_spans) return 0;
  const ops::RowSpan& rows = batch.spans[span];
  const int groups = (rows.num_rows + DecodeScore::kGroupRows - 1) / DecodeScore::kGroupRows;
  return groups * pages_of(select, rows);
}

__device__ __forceinline__ void score_work(const SelectLaunch& select, const ops::RowSpan& span,
                                           int first, int count) {
  const int pages = pages_of(select, span);
  while (count > 0) {
    const int group = first / pages, page = first % pages;
    const int run = min(count, pages - page);
    score_pages(select, span, group, page, run);
    first += run;
    count -= run;
  }
}

__device__ __forceinline__ int inclusive_sum(int value) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(kAllLanes, value, step);
    if (lane_id() >= step) value += before;
  }
  return value;
}

/// The pages of all spans, one after the other, are dealt to the warps of the grid in equal runs:
/// the grid knows no lengths, and one long sequence among short ones keeps no block waiting.
__global__ void __launch_bounds__(DecodeScore::kThreads, kScoreBlocksPerSm)
    score_decode(const __grid_constant__ SelectLaunch select, const __grid_constant__ Batch batch) {
  wait_for_inputs();
  allow_next_kernel();
  const int warp = static_cast<int>(blockIdx.x) * DecodeScore::kWarps + warp_id();
  const int warps = static_cast<int>(gridDim.x) * DecodeScore::kWarps;
  int total = 0;
  for (int base = 0; base < batch.num_spans; base += kWarp)
    total += __reduce_add_sync(kAllLanes, work_of(select, batch, base + lane_id()));
  int first = static_cast<int>(int64_t{total} * warp / warps);
  const int last = static_cast<int>(int64_t{total} * (warp + 1) / warps);

  int before = 0;  // work of the spans before `base`
  for (int base = 0; first < last; base += kWarp) {
    const int work = work_of(select, batch, base + lane_id());
    const int end = before + inclusive_sum(work);
    before = __shfl_sync(kAllLanes, end, kWarp - 1);
    while (first < min(last, before)) {
      const int owner = __popc(__ballot_sync(kAllLanes, end <= first));
      const int owner_end = __shfl_sync(kAllLanes, end, owner);
      const int owner_begin = owner_end - __shfl_sync(kAllLanes, work, owner);
      const int run = min(last, owner_end) - first;
      score_work(select, batch.spans[base + owner], first - owner_begin, run);
      first += run;
    }
  }
}

}  // namespace tessera::cuda::device
