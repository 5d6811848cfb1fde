// SPDX-License-Identifier: Apache-2.0
// Prefill form of GDN. With G the cumulative log decay of a chunk and S its entry state, the
// updates u of the recurrence solve a unit lower triangular system, so that tokens become matrix
// products:
//   u_i = beta_i (v_i - e^(G_i) S^T k_i) - sum over j < i of beta_i e^(G_i - G_j) (k_i . k_j) u_j
//   o_i = e^(G_i) S^T q_i + sum over j <= i of e^(G_i - G_j) (q_i . k_j) u_j
//   S'  = e^(G_C) S + sum over j of e^(G_C - G_j) k_j u_j^T
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/fast/gdn_parts.h"
#include "cpu/fast/gemm_tile.h"
#include "cpu/fast/row_math.h"
#include "cpu/fast/rows_level.h"
#include "cpu/fast/simd.h"
#include "cpu/fast/vector_math.h"

namespace tessera::cpu {
namespace {

constexpr int kChunk = ops::kGdnChunk;
constexpr int kSolveBlock = 16;  // rows eliminated one by one between two products

/// Cumulative log decays, in double: their differences are small numbers between large ones.
struct Decays {
  double sum[kChunk];
  float from_entry[kChunk];  // e^(G_i)
  float to_exit[kChunk];     // e^(G_C - G_i)
  float beta[kChunk];
};

struct RowPointers {
  const float* at[kChunk];

  RowPointers(const float* first, int64_t stride, int count) {
    for (int row = 0; row < count; ++row) at[row] = first + row * stride;
  }
};

/// row[j] = factor * e^(G_i - G_j) * products[j] for j < count.
TESSERA_SIMD_CLONES
void decayed_row(const float* __restrict products, const double* __restrict sums, double sum,
                 float factor, int count, float* __restrict row) {
#pragma omp simd
  for (int at = 0; at < count; ++at)
    row[at] = factor * products[at] * vector_exp(static_cast<float>(sum - sums[at]));
}

/// y = factor * (v - decay * y)
TESSERA_SIMD_CLONES
void residual_row(const float* __restrict value, float decay, float factor, int count,
                  float* __restrict y) {
#pragma omp simd
  for (int at = 0; at < count; ++at) y[at] = factor * (value[at] - decay * y[at]);
}

Decays decays_of(const ops::GdnArgs& args, const GdnChunk& chunk, int64_t first_row, int head,
                 const GdnPrepared& prepared) {
  const int64_t heads = args.shape.value_heads;
  Decays decays;
  double sum = 0;
  for (int row = 0; row < chunk.rows; ++row) {
    const int64_t at = (first_row + row) * heads + head;
    sum += prepared.log_decay[at];
    decays.sum[row] = sum;
    decays.from_entry[row] = vector_exp(static_cast<float>(sum));
    decays.beta[row] = prepared.beta[at];
  }
  for (int row = 0; row < chunk.rows; ++row)
    decays.to_exit[row] = vector_exp(static_cast<float>(sum - decays.sum[row]));
  return decays;
}

/// The negated strict lower triangle of the system, and the masked attention of the chunk, which is
/// zero behind the diagonal.
void set_triangles(const Decays& decays, int rows, const GdnProducts& products,
                   const GdnChunkWorkspace& work) {
  for (int row = 0; row < rows; ++row) {
    const int at = row * kChunk;
    decayed_row(products.key_key + at, decays.sum, decays.sum[row], -decays.beta[row], row,
                work.system + at);
    decayed_row(products.query_key + at, decays.sum, decays.sum[row], 1.0F, row + 1,
                work.attention + at);
    std::fill(work.attention + at + row + 1, work.attention + at + kChunk, 0.0F);
  }
}

/// Forward substitution of (1 - system) u = right-hand side, in place.
void solve(int rows, int dim, const GdnChunkWorkspace& work) {
  for (int block = 0; block < rows; block += kSolveBlock) {
    const int last = std::min(rows, block + kSolveBlock);
    float* update = work.update + static_cast<ptrdiff_t>(block) * dim;
    const float* system = work.system + static_cast<ptrdiff_t>(block) * kChunk;
    const RowPointers factors(system, kChunk, last - block);
    row_kernels().lane_products(
        {factors.at, last - block, block, work.update, dim, update, true, {}});
    for (int row = block + 1; row < last; ++row) {
      float* target = work.update + static_cast<ptrdiff_t>(row) * dim;
      const float* row_factors = work.system + static_cast<ptrdiff_t>(row) * kChunk;
      for (int before = block; before < row; ++before)
        add_scaled(row_factors[before], work.update + static_cast<ptrdiff_t>(before) * dim, target,
                   dim);
    }
  }
}

void attend(const Decays& decays, int rows, int dim, const GdnChunkWorkspace& work) {
  for (int row = 0; row < rows; ++row) {
    float* out = work.out + static_cast<ptrdiff_t>(row) * dim;
    scale_row(out, decays.from_entry[row], out, dim);
  }
  for (int block = 0; block < rows; block += kSolveBlock) {
    const int last = std::min(rows, block + kSolveBlock);
    const RowPointers factors(work.attention + static_cast<ptrdiff_t>(block) * kChunk, kChunk,
                              last - block);
    row_kernels().lane_products({factors.at,
                                 last - block,
                                 last,
                                 work.update,
                                 dim,
                                 work.out + static_cast<ptrdiff_t>(block) * dim,
                                 true,
                                 {}});
  }
}

}  // namespace

void gdn_chunk_products(const ops::GdnArgs& args, const GdnWindow& window, const GdnChunk& chunk,
                        int key_head, const GdnPrepared& prepared, const GdnProducts& products) {
  const int64_t channels = args.shape.channels();
  const int64_t dim = args.shape.key_dim;
  const float* rows = prepared.mixed + (chunk.launch_row() - window.first_row) * channels;
  const GemmIn queries = {rows + key_head * dim, channels};
  const GemmIn keys = {rows + (args.shape.key_heads + key_head) * dim, channels};
  const GemmSize size = {chunk.rows, chunk.rows, args.shape.key_dim};
  gemm_nt(size, keys, keys, {products.key_key, kChunk});
  gemm_nt(size, queries, keys, {products.query_key, kChunk});
}

GdnChunkWorkspace take_gdn_chunk_workspace(const ops::GdnShape& shape, Arena& scratch) {
  const auto dim = static_cast<size_t>(shape.value_dim);
  GdnChunkWorkspace work;
  work.system = scratch.take<float>(size_t{kChunk} * kChunk);
  work.attention = scratch.take<float>(size_t{kChunk} * kChunk);
  work.update = scratch.take<float>(kChunk * dim);
  work.out = scratch.take<float>(kChunk * dim);
  return work;
}

void gdn_run_chunk(const ops::GdnArgs& args, const GdnWindow& window, const GdnChunk& chunk,
                   int head, const GdnPrepared& prepared, const GdnProducts& products,
                   const GdnChunkWorkspace& work) {
  const ops::GdnShape& shape = args.shape;
  const int dim = shape.value_dim;
  const int64_t channels = shape.channels();
  const int64_t first_row = chunk.launch_row() - window.first_row;
  const GdnHead at = gdn_head(shape, head);
  const float* mixed = prepared.mixed + first_row * channels;
  const RowPointers keys(mixed + at.key_at, channels, chunk.rows);
  const RowPointers queries(mixed + at.query_at, channels, chunk.rows);
  float* matrix = gdn_matrix(args, *chunk.span, head);
  const Decays decays = decays_of(args, chunk, first_row, head, prepared);
  set_triangles(decays, chunk.rows, products, work);

  const int key_dim = shape.key_dim;
  row_kernels().lane_products({keys.at, chunk.rows, key_dim, matrix, dim, work.update, false, {}});
  row_kernels().lane_products({queries.at, chunk.rows, key_dim, matrix, dim, work.out, false, {}});
  for (int row = 0; row < chunk.rows; ++row) {
    residual_row(mixed + row * channels + at.value_at, decays.from_entry[row], decays.beta[row],
                 dim, work.update + static_cast<ptrdiff_t>(row) * dim);
  }
  solve(chunk.rows, dim, work);
  attend(decays, chunk.rows, dim, work);

  scale_row(matrix, decays.from_entry[chunk.rows - 1], matrix, key_dim * dim);
  for (int row = 0; row < chunk.rows; ++row) {
    float* update = work.update + static_cast<ptrdiff_t>(row) * dim;
    scale_row(update, decays.to_exit[row], update, dim);
  }
  const RowPointers updates(work.update, dim, chunk.rows);
  row_kernels().weighted_sum(
      {updates.at, chunk.rows, dim, keys.at[0], static_cast<int>(channels), key_dim, matrix, {}});
  for (int row = 0; row < chunk.rows; ++row) {
    const int64_t launch_row = chunk.launch_row() + row;
    std::memcpy(floats(args.out) + (launch_row * shape.value_heads + head) * dim,
                work.out + static_cast<ptrdiff_t>(row) * dim,
                static_cast<size_t>(dim) * sizeof(float));
    gdn_finish_row(args, launch_row, head);
  }
}

}  // namespace tessera::cpu
