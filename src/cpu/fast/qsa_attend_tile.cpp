// SPDX-License-Identifier: Apache-2.0
// Online softmax over tiles of gathered keys and values, the next tile asked for meanwhile.
#include "cpu/fast/qsa_attend_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/fast/qsa_pages.h"
#include "cpu/fast/row_math.h"
#include "cpu/fast/rows_level.h"
#include "cpu/fast/simd.h"
#include "cpu/fast/vector_math.h"

namespace tessera::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Lane h of packed[d] is element d of head h, scaled by 1 / sqrt(D); unused lanes are zero.
void pack_heads(const ops::QsaAttendArgs& args, const ops::RowSpan& span, int row,
                const AttendHeads& heads, float* packed) {
  const int dim = args.shape.head_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  const float* queries =
      floats(args.q) + ((span.row_begin + row) * int64_t{args.shape.heads} + heads.first) * dim;
  for (int d = 0; d < dim; ++d, packed += kAttendLanes) {
    for (int head = 0; head < heads.count; ++head)
      packed[head] = queries[static_cast<ptrdiff_t>(head) * dim + d] * scale;
    std::fill(packed + heads.count, packed + kAttendLanes, 0.0F);
  }
}

/// Walks the list entries [first, first + count): fn(index, first token, number of tokens), each
/// call covering tokens that lie side by side in the cache.
template <class Fn>
void for_each_run(const TokenList& list, int block, int first, int count, Fn&& fn) {
  const int block_entries = list.num_blocks * block;
  for (int at = 0; at < count;) {
    const int entry = first + at;
    int64_t token = 0;
    int length = 0;
    if (entry < block_entries) {
      token = int64_t{list.blocks[entry / block]} * block + entry % block;
      length = block - entry % block;
    } else {
      token = list.tail + (entry - block_entries);
      length = list.num_tail - (entry - block_entries);
    }
    length = std::min(length, count - at);
    fn(at, token, length);
    at += length;
  }
}

/// Where the vectors of some list entries are stored.
struct Tile {
  const std::byte* keys[kAttendTile];
  const std::byte* values[kAttendTile];
  int count = 0;
};

void locate(const ops::PageRef& cache, const std::byte* run, int index, int length, int dim,
            const std::byte** rows) {
  const size_t bytes = static_cast<size_t>(dim) * dtype_bytes(cache.dtype);
  for (int inner = 0; inner < length; ++inner)
    rows[index + inner] = run + static_cast<size_t>(inner) * bytes;
}

void locate_tile(const ops::QsaAttendArgs& args, const ops::RowSpan& span, int kv_head,
                 const TokenList& list, int first, int count, Tile& tile) {
  const ops::QsaShape& shape = args.shape;
  tile.count = count;
  for_each_run(list, shape.block, first, count, [&](int index, int64_t token, int length) {
    locate(args.cache.keys, cached_vector(args.cache.keys, shape, span, kv_head, token), index,
           length, shape.head_dim, tile.keys);
    locate(args.cache.values, cached_vector(args.cache.values, shape, span, kv_head, token), index,
           length, shape.head_dim, tile.values);
  });
}

/// Float vectors of the rows, converted into `buffer` only when the cache is stored otherwise.
void widen_rows(const std::byte* const* stored, int count, const ops::PageRef& cache, int dim,
                float* buffer, const float** rows) {
  for (int row = 0; row < count; ++row) {
    rows[row] = reinterpret_cast<const float*>(stored[row]);
    if (cache.dtype == DType::kF32) continue;
    float* widened = buffer + static_cast<ptrdiff_t>(row) * dim;
    widen_row(stored[row], cache.dtype, 1.0F, widened, dim);
    rows[row] = widened;
  }
}

/// Replaces logits by e^(logit - top), updates top and sum, and leaves in `shrink` the factor by
/// which what was summed before must shrink.
TESSERA_SIMD_CLONES
void soften_tile(float* __restrict logits, int count, float* __restrict top, float* __restrict sum,
                 float* __restrict shrink) {
  float raised[kAttendLanes];
  for (int lane = 0; lane < kAttendLanes; ++lane) raised[lane] = top[lane];
  for (int token = 0; token < count; ++token) {
    const float* __restrict logit = logits + token * kAttendLanes;
#pragma omp simd
    for (int lane = 0; lane < kAttendLanes; ++lane)
      raised[lane] = logit[lane] > raised[lane] ? logit[lane] : raised[lane];
  }
#pragma omp simd
  for (int lane = 0; lane < kAttendLanes; ++lane) {
    shrink[lane] = vector_exp(top[lane] - raised[lane]);
    sum[lane] *= shrink[lane];
    top[lane] = raised[lane];
  }
  for (int token = 0; token < count; ++token) {
    float* __restrict logit = logits + token * kAttendLanes;
#pragma omp simd
    for (int lane = 0; lane < kAttendLanes; ++lane) {
      logit[lane] = vector_exp(logit[lane] - raised[lane]);
      sum[lane] += logit[lane];
    }
  }
}

/// One tile of the list; the stored vectors of `next` are requested meanwhile.
void attend_tile(const ops::QsaAttendArgs& args, const Tile& tile, const Tile& next, int heads,
                 const AttendWorkspace& work, const AttendState& state) {
  const int dim = args.shape.head_dim;
  const int row_bytes = dim * static_cast<int>(dtype_bytes(args.cache.keys.dtype));
  const float* rows[kAttendTile];
  float shrink[kAttendLanes];
  widen_rows(tile.keys, tile.count, args.cache.keys, dim, work.widened, rows);
  row_kernels().lane_products({rows,
                               tile.count,
                               dim,
                               work.packed,
                               kAttendLanes,
                               work.logits,
                               false,
                               {next.values, next.count, row_bytes}});
  soften_tile(work.logits, tile.count, state.top, state.sum, shrink);
  for (int head = 0; head < heads; ++head) {
    float* out = state.out + static_cast<ptrdiff_t>(head) * dim;
    if (shrink[head] != 1.0F) scale_row(out, shrink[head], out, dim);
  }
  widen_rows(tile.values, tile.count, args.cache.values, dim, work.widened, rows);
  row_kernels().weighted_sum({rows,
                              tile.count,
                              dim,
                              work.logits,
                              kAttendLanes,
                              heads,
                              state.out,
                              {next.keys, next.count, row_bytes}});
}

}  // namespace

TokenList token_list(const ops::QsaAttendArgs& args, const ops::RowSpan& span, int row) {
  const int64_t launch_row = span.row_begin + row;
  const int64_t position = span.position + row;
  TokenList list;
  list.blocks = args.blocks + launch_row * args.budget_blocks;
  list.num_blocks = args.counts[launch_row];
  list.tail = (position + 1) / args.shape.block * args.shape.block;
  list.num_tail = static_cast<int>(position + 1 - list.tail);
  return list;
}

void attend_run(const ops::QsaAttendArgs& args, const ops::RowSpan& span, int row,
                const AttendHeads& heads, const TokenList& list, int first, int last,
                const AttendWorkspace& work, const AttendState& state) {
  const int dim = args.shape.head_dim;
  std::fill_n(state.top, kAttendLanes, kMinusInfinity);
  std::fill_n(state.sum, kAttendLanes, 0.0F);
  std::fill_n(state.out, static_cast<ptrdiff_t>(heads.count) * dim, 0.0F);
  pack_heads(args, span, row, heads, work.packed);
  Tile tiles[2];
  const auto locate_at = [&](int at, Tile& tile) {
    locate_tile(args, span, heads.kv_head, list, at, std::clamp(last - at, 0, kAttendTile), tile);
  };
  locate_at(first, tiles[0]);
  int current = 0;
  for (int at = first; at < last; at += kAttendTile) {
    const int other = 1 - current;
    locate_at(at + kAttendTile, tiles[other]);
    attend_tile(args, tiles[current], tiles[other], heads.count, work, state);
    current = other;
  }
}

void merge_runs(const AttendState& next, int heads, int head_dim, const AttendState& into) {
  for (int head = 0; head < heads; ++head) {
    const float top = std::max(into.top[head], next.top[head]);
    const float keep = vector_exp(into.top[head] - top);
    const float add = vector_exp(next.top[head] - top);
    float* out = into.out + static_cast<ptrdiff_t>(head) * head_dim;
    scale_row(out, keep, out, head_dim);
    add_scaled(add, next.out + static_cast<ptrdiff_t>(head) * head_dim, out, head_dim);
    into.sum[head] = into.sum[head] * keep + next.sum[head] * add;
    into.top[head] = top;
  }
}

}  // namespace tessera::cpu
