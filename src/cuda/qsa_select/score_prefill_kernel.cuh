// SPDX-License-Identifier: Apache-2.0
// Block scores of prompt rows: 64 rows share each tile of 64 keys, four products per score on
// tensor cores.
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

struct PrefillScore : FastScoreShape {
  static constexpr int kRows = cuda::kTileRows;
  static constexpr int kKeys = cuda::kTileKeys;
  static constexpr int kPages = kKeys / kPageKeys;
  static constexpr int kStages = 3;
  static constexpr int kVectors = kDim / kVectorBf16;  // 16-byte pieces of a key or a query head
  static constexpr int kMmaRows = 16;
  static constexpr int kMmaKeys = 8;
  static constexpr int kMmaDepth = 16;
  static constexpr int kRowGroups = kRows / kMmaRows;          // of warps
  static constexpr int kKeyGroups = kScoreWarps / kRowGroups;  // of warps
  static constexpr int kWarpKeys = kKeys / kKeyGroups;         // of one warp
  static constexpr int kKeyTiles = kWarpKeys / kMmaKeys;       // MMAs side by side
  static constexpr int kSteps = kDim / kMmaDepth;
  static constexpr int kWarpGroups = kWarpKeys / kGroupKeys;  // groups with a largest key
};

/// Pieces of 16 bytes are stored at (piece ^ line % 8), so that the eight lines which ldmatrix
/// reads at once lie in different banks. A query's line is its row: its heads are read one at a
/// time.
struct PrefillShared {
  uint4 queries[PrefillScore::kRows][PrefillScore::kHeads][PrefillScore::kVectors];
  uint4 keys[PrefillScore::kStages][PrefillScore::kKeys][PrefillScore::kVectors];
};

__device__ __forceinline__ int swizzled(int line, int piece) {
  constexpr int kLines = 8;
  return piece ^ (line % kLines);
}

/// Starts the copy of the tile's queries; rows past `row_end` become zero.
__device__ __forceinline__ void copy_queries(PrefillShared& shared, const SelectLaunch& select,
                                             int first_row) {
  constexpr int kRowVectors = PrefillScore::kHeads * PrefillScore::kVectors;
  const auto* queries = static_cast<const uint4*>(select.queries);
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x); at < PrefillScore::kRows * kRowVectors;
       at += kScoreThreads) {
    const int row = at / kRowVectors, rest = at % kRowVectors;
    const int head = rest / PrefillScore::kVectors, piece = rest % PrefillScore::kVectors;
    const bool valid = first_row + row < select.row_end;
    const int64_t source = valid ? int64_t{first_row + row} * kRowVectors + rest : 0;
    copy_async_16(&shared.queries[row][head][swizzled(row, piece)], queries + source, valid);
  }
}

/// The pages of a key tile; absent ones are -1.
struct TilePages {
  int32_t ids[PrefillScore::kPages];

  __device__ __forceinline__ void load(const int32_t* pages, int num_pages, int tile) {
#pragma unroll
    for (int at = 0; at < PrefillScore::kPages; ++at) {
      const int page = tile * PrefillScore::kPages + at;
      ids[at] = page < num_pages ? pages[page] : -1;
    }
  }
};

/// Starts the copy of a key tile: each thread has one piece of each page.
__device__ __forceinline__ void copy_keys(
    uint4 (&stage)[PrefillScore::kKeys][PrefillScore::kVectors], const ops::PageRef& cache,
    const TilePages& pages) {
  static_assert(kScoreThreads == PrefillScore::kPageKeys * PrefillScore::kVectors);
  const int thread = static_cast<int>(threadIdx.x);
  const int line = thread / PrefillScore::kVectors, piece = thread % PrefillScore::kVectors;
#pragma unroll
  for (int at = 0; at < PrefillScore::kPages; ++at) {
    const bool valid = pages.ids[at] >= 0;
    const auto id = static_cast<size_t>(valid ? pages.ids[at] : 0);
    const std::byte* page = cache.pool + id * cache.page_stride + cache.offset;
    const int key = at * PrefillScore::kPageKeys + line;
    copy_async_16(&stage[key][swizzled(key, piece)], reinterpret_cast<const uint4*>(page) + thread,
                  valid);
  }
}

/// One warp: 16 rows, all four heads, kWarpKeys keys. A head is an MMA tile of its own, so a lane
/// holds the four products of a score in its own registers.
__device__ __forceinline__ void score_tile(
    const PrefillShared& shared, const uint4 (&stage)[PrefillScore::kKeys][PrefillScore::kVectors],
    float (&products)[PrefillScore::kHeads][PrefillScore::kKeyTiles][4]) {
  const int lane = lane_id(), line = lane % 8;
  const int row =
      warp_id() % PrefillScore::kRowGroups * PrefillScore::kMmaRows + line + lane / 8 % 2 * 8;
  const int row_half = lane / 16;
  const int key = warp_id() / PrefillScore::kRowGroups * PrefillScore::kWarpKeys + line +
                  lane / 16 * PrefillScore::kMmaKeys;
  const int key_half = lane / 8 % 2;
#pragma unroll
  for (int step = 0; step < PrefillScore::kSteps; ++step) {
    uint32_t keys[PrefillScore::kKeyTiles / 2][4];
#pragma unroll
    for (int pair = 0; pair < PrefillScore::kKeyTiles / 2; ++pair)
      load_matrix_x4(
          keys[pair],
          &stage[key + pair * 2 * PrefillScore::kMmaKeys][swizzled(line, 2 * step + key_half)]);
#pragma unroll
    for (int head = 0; head < PrefillScore::kHeads; ++head) {
      uint32_t query[4];
      load_matrix_x4(query, &shared.queries[row][head][swizzled(line, 2 * step + row_half)]);
#pragma unroll
      for (int tile = 0; tile < PrefillScore::kKeyTiles; ++tile) {
        const uint32_t(&pair)[4] = keys[tile / 2];
        mma_m16n8k16(products[head][tile], query, {pair[tile % 2 * 2], pair[tile % 2 * 2 + 1]});
      }
    }
  }
}

/// Each lane of a quad brings four values, [half][group], and leaves with the largest of the quad
/// of one of them: half lane / 2 % 2, group lane % 2.
__device__ __forceinline__ uint32_t quad_top(const uint32_t (&values)[2][2]) {
  const bool second_group = lane_id() % 2 != 0, second_half = lane_id() / 2 % 2 != 0;
  uint32_t halves[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t other = second_group ? values[half][0] : values[half][1];
    halves[half] =
        max(second_group ? values[half][1] : values[half][0], __shfl_xor_sync(kAllLanes, other, 1));
  }
  const uint32_t other = second_half ? halves[0] : halves[1];
  return max(second_half ? halves[1] : halves[0], __shfl_xor_sync(kAllLanes, other, 2));
}

/// Rows [row_begin, row_end) of the tile that starts at first_row, keys from first_key on.
/// kMasked: some row does not see all of these keys.
template <bool kMasked>
__device__ __forceinline__ void store_scores(
    const SelectLaunch& select, const ops::RowSpan& span, int first_row, int row_begin, int row_end,
    int first_key, const float (&products)[PrefillScore::kHeads][PrefillScore::kKeyTiles][4]) {
  constexpr int kHalfRows = PrefillScore::kMmaRows / 2;
  constexpr int kGroupTiles = kGroupKeys / PrefillScore::kMmaKeys;
  const int group = lane_id() / 4, quad = lane_id() % 4;
  first_key += warp_id() / PrefillScore::kRowGroups * PrefillScore::kWarpKeys;
  first_row += warp_id() % PrefillScore::kRowGroups * PrefillScore::kMmaRows + group;
  uint32_t tops[2][PrefillScore::kWarpGroups] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + half * kHalfRows;
    const bool stored = row >= row_begin && row < row_end;
    const int first = first_key + 2 * quad;
    const int seen = kMasked ? select.visible(span, row) - first : 0;  // from `first` on
    uint32_t* scores = select.score_row(row) + first;
#pragma unroll
    for (int tile = 0; tile < PrefillScore::kKeyTiles; ++tile) {
      uint32_t keys[2];
#pragma unroll
      for (int at = 0; at < 2; ++at) {
        const int element = 2 * half + at;
        keys[at] = score_key((relu(products[0][tile][element]) + relu(products[1][tile][element])) +
                             (relu(products[2][tile][element]) + relu(products[3][tile][element])));
        if (kMasked && tile * PrefillScore::kMmaKeys + at >= seen) keys[at] = kNoScore;
      }
      if (stored)
        *reinterpret_cast<uint2*>(scores + tile * PrefillScore::kMmaKeys) = {keys[0], keys[1]};
      uint32_t& top = tops[half][tile / kGroupTiles];
      top = max(top, max(keys[0], keys[1]));
    }
  }
  const uint32_t top = quad_top(tops);
  const int row = first_row + quad / 2 * kHalfRows;
  if (row >= row_begin && row < row_end)
    select.top_row(row)[first_key / kGroupKeys + quad % 2] = top;
}

/// The rows of one span within the tile: this block's share of the key tiles, kStages in flight.
__device__ __forceinline__ void score_piece(PrefillShared& shared, const SelectLaunch& select,
                                            const ops::RowSpan& span, int first_row, int row_begin,
                                            int row_end) {
  const int visible = select.visible(span, row_end - 1);
  if (visible <= select.budget) return;
  const int seen_by_all = select.visible(span, row_begin);
  const int num_pages = (visible - 1) / PrefillScore::kPageKeys + 1;
  const int num_tiles = (visible - 1) / PrefillScore::kKeys + 1;
  const int split = static_cast<int>(blockIdx.x), splits = static_cast<int>(gridDim.x);
  const int begin = static_cast<int>(int64_t{num_tiles} * split / splits);
  const int end = static_cast<int>(int64_t{num_tiles} * (split + 1) / splits);
  constexpr int kAhead = PrefillScore::kStages - 1;
  TilePages pages;
  for (int tile = begin; tile < begin + kAhead; ++tile) {
    pages.load(span.pages, num_pages, tile);
    if (tile < end) copy_keys(shared.keys[tile - begin], select.keys, pages);
    commit_copies();  // also when empty: the wait below counts groups
  }
  pages.load(span.pages, num_pages, begin + kAhead);
  for (int tile = begin; tile < end; ++tile) {
    wait_copies<kAhead - 1>();
    // The tile has arrived for every thread, and every warp is done with the stage refilled next.
    __syncthreads();
    const int next = tile + kAhead;
    if (next < end)
      copy_keys(shared.keys[(next - begin) % PrefillScore::kStages], select.keys, pages);
    commit_copies();
    pages.load(span.pages, num_pages, next + 1);
    float products[PrefillScore::kHeads][PrefillScore::kKeyTiles][4] = {};
    score_tile(shared, shared.keys[(tile - begin) % PrefillScore::kStages], products);
    const int first_key = tile * PrefillScore::kKeys;
    if (first_key + PrefillScore::kKeys <= seen_by_all)
      store_scores<false>(select, span, first_row, row_begin, row_end, first_key, products);
    else
      store_scores<true>(select, span, first_row, row_begin, row_end, first_key, products);
  }
  wait_copies<0>();
  __syncthreads();  // the stages are free for the next piece
}

/// grid: (splits of the keys, tiles of kRows rows from select.row_begin on).
__global__ void __launch_bounds__(kScoreThreads, kScoreBlocksPerSm)
    score_prefill(const __grid_constant__ SelectLaunch select,
                  const __grid_constant__ Batch batch) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  PrefillShared& shared = *reinterpret_cast<PrefillShared*>(shared_bytes);
  wait_for_inputs();
  allow_next_kernel();
  const int first_row = select.row_begin + static_cast<int>(blockIdx.y) * PrefillScore::kRows;
  const int tile_end = min(first_row + PrefillScore::kRows, select.row_end);
  copy_queries(shared, select, first_row);
  for (int row = first_row; row < tile_end;) {
    const ops::RowSpan span = batch.spans[batch.row_span[row]];
    const int piece_end = min(tile_end, span.row_begin + span.num_rows);
    score_piece(shared, select, span, first_row, row, piece_end);
    row = piece_end;
  }
  commit_copies();
  wait_copies<0>();  // the queries, when no piece had anything to score
}

}  // namespace tessera::cuda::device
