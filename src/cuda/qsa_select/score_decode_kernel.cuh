// SPDX-License-Identifier: Apache-2.0
// Block scores of decoded rows on tensor cores: up to six rows of a sequence share each key.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/bf16.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/prefetch.cuh"
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
  static constexpr int kThreads = 256;
  /// Registers are given out as for this many threads: the rest is for a block of the choice.
  static constexpr int kThreadsWithNext = 384;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kPagesAhead = 2;
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

__device__ __forceinline__ const Bf16* page_keys(const ops::PageRef& cache, int32_t page) {
  return reinterpret_cast<const Bf16*>(cache.pool + static_cast<size_t>(page) * cache.page_stride +
                                       cache.offset);
}

/// A page's keys as this lane's part of the MMA operand: keys lane / 4 and lane / 4 + kHalfKeys.
struct PageKeys {
  static constexpr int kHalfKeys = DecodeScore::kPageKeys / 2;
  uint4 low[DecodeScore::kChunks], high[DecodeScore::kChunks];

  __device__ __forceinline__ void load(const Bf16* keys) {
#pragma unroll
    for (int chunk = 0; chunk < DecodeScore::kChunks; ++chunk) {
      const Bf16* key = keys + lane_id() / 4 * DecodeScore::kDim + lane_dim(chunk);
      low[chunk] = load_streaming(key);
      high[chunk] = load_streaming(key + kHalfKeys * DecodeScore::kDim);
    }
  }
};

/// Where the results of a group of rows go: the rows' places of the page at hand.
struct ScoreOutput {
  uint32_t* scores;  // of the first row
  uint32_t* tops;
  int stride;
  int rows;
  /// Of the rows this lane writes (tile, quad / 2): keys from this lane's first one on.
  int seen[DecodeScore::kTiles];

  __device__ __forceinline__ void next_page() {
    scores += DecodeScore::kPageKeys;
    ++tops;
#pragma unroll
    for (int& keys : seen) keys -= DecodeScore::kPageKeys;
  }
};

/// Scores of one page for the rows of a group, and the largest of each row.
__device__ __forceinline__ void score_page(const PageKeys& keys, const QueryTiles& queries,
                                           const ScoreOutput& output) {
  const int group = lane_id() / 4, quad = lane_id() % 4;
  constexpr int kHalfKeys = PageKeys::kHalfKeys;
  const auto& low = keys.low;
  const auto& high = keys.high;
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
    float low_score = relu(product[0]) + relu(product[1]);
    float high_score = relu(product[2]) + relu(product[3]);
    low_score += __shfl_xor_sync(kAllLanes, low_score, 1);
    high_score += __shfl_xor_sync(kAllLanes, high_score, 1);
    const uint32_t low_key = output.seen[tile] > 0 ? score_key(low_score) : kNoScore;
    const uint32_t high_key = output.seen[tile] > kHalfKeys ? score_key(high_score) : kNoScore;
    uint32_t top = max(low_key, high_key);
#pragma unroll
    for (int step = 4; step < kWarp; step *= 2)
      top = max(top, __shfl_xor_sync(kAllLanes, top, step));
    const bool takes_high = quad % 2 != 0;
    const int row = tile * DecodeScore::kTileRows + quad / 2;
    if (row >= output.rows) continue;
    output.scores[row * output.stride + group + (takes_high ? kHalfKeys : 0)] =
        takes_high ? high_key : low_key;
    if (group == 0 && !takes_high) output.tops[row * (output.stride / kGroupKeys)] = top;
  }
}

/// Pages [page, page + count) for the rows of group `group` of the span. The next page is under way
/// to registers while this one is multiplied, and kPagesAhead after it to the second-level cache.
__device__ __forceinline__ void score_pages(const SelectLaunch& select, const ops::RowSpan& span,
                                            int group, int page, int count) {
  const int inner = group * DecodeScore::kGroupRows;
  const int row = span.row_begin + inner;
  const int rows = min(DecodeScore::kGroupRows, span.num_rows - inner);
  QueryTiles queries;
  queries.load(static_cast<const Bf16*>(select.queries), row, rows);
  const auto load_ids = [&](int first) {
    return first + lane_id() < count ? span.pages[page + first + lane_id()] : 0;
  };
  int32_t ids = load_ids(0);  // of pages at / kWarp * kWarp + lane
  PageKeys ahead;
  const auto load_page = [&](int at) {
    ahead.load(page_keys(select.keys, __shfl_sync(kAllLanes, ids, at % kWarp)));
    constexpr uint32_t kBytes = DecodeScore::kPageKeys * DecodeScore::kDim * sizeof(Bf16);
    const int further = lane_id() - at % kWarp;
    const bool is_new = at % kWarp == 0 || further == DecodeScore::kPagesAhead;
    if (is_new && further > 0 && further <= DecodeScore::kPagesAhead && at + further < count)
      prefetch_bulk(page_keys(select.keys, ids), kBytes);
  };
  load_page(0);
  ScoreOutput output{.scores = select.score_row(row) + int64_t{page} * DecodeScore::kPageKeys,
                     .tops = select.top_row(row) + page,
                     .stride = static_cast<int>(select.stride),
                     .rows = rows,
                     .seen = {}};
#pragma unroll
  for (int tile = 0; tile < DecodeScore::kTiles; ++tile)
    output.seen[tile] =
        select.visible(span, row + tile * DecodeScore::kTileRows + lane_id() % 4 / 2) -
        page * DecodeScore::kPageKeys - lane_id() / 4;
#pragma unroll 1
  for (int next = 1; next <= count; ++next) {
    const PageKeys keys = ahead;
    if (next % kWarp == 0) ids = load_ids(next);
    if (next < count) load_page(next);
    score_page(keys, queries, output);
    output.next_page();
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

__device__ __forceinline__ int inclusive_sum(int value) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(kAllLanes, value, step);
    if (lane_id() >= step) value += before;
  }
  return value;
}

/// The span that holds a piece of work, and the work of the spans before it.
struct Owner {
  int span;
  int before;
};

/// `first` is less than the work of all spans.
__device__ __forceinline__ Owner owner_of(const SelectLaunch& select, const Batch& batch,
                                          int first) {
  int before = 0;  // work of the spans before `base`
  for (int base = 0;; base += kWarp) {
    const int work = work_of(select, batch, base + lane_id());
    const int end = before + inclusive_sum(work);
    before = __shfl_sync(kAllLanes, end, kWarp - 1);
    if (first >= before) continue;
    const int lane = __popc(__ballot_sync(kAllLanes, end <= first));
    return {base + lane, __shfl_sync(kAllLanes, end - work, lane)};
  }
}

/// The pages of all spans, one after the other, are dealt to the warps of the grid in equal runs:
/// the grid knows no lengths, and one long sequence among short ones keeps no block waiting.
__global__ void __launch_bounds__(DecodeScore::kThreadsWithNext, kDecodeScoreBlocksPerSm)
    score_decode(const __grid_constant__ SelectLaunch select, const __grid_constant__ Batch batch) {
  wait_for_inputs();
  allow_next_kernel();
  // Neighbouring warps are in different blocks: little work goes to all processors.
  const int blocks = static_cast<int>(gridDim.x);
  const int warp = warp_id() * blocks + static_cast<int>(blockIdx.x);
  const int warps = blocks * DecodeScore::kWarps;
  int total = 0;
  for (int base = 0; base < batch.num_spans; base += kWarp)
    total += __reduce_add_sync(kAllLanes, work_of(select, batch, base + lane_id()));
  const int share = total / warps, longer = total % warps;  // the first warps have one more
  int first = warp * share + min(warp, longer);
  const int last = first + share + (warp < longer ? 1 : 0);
  // NOTE: the owner is found again for each run: what the search knows would cost registers.
#pragma unroll 1
  while (first < last) {
    const Owner owner = owner_of(select, batch, first);
    const ops::RowSpan& span = batch.spans[owner.span];
    const int pages = pages_of(select, span);
    const int group = (first - owner.before) / pages, page = (first - owner.before) % pages;
    const int run = min(last - first, pages - page);
    score_pages(select, span, group, page, run);
    first += run;
  }
}

}  // namespace tessera::cuda::device
