// SPDX-License-Identifier: Apache-2.0
// Reference of the block selection: score everything, sort by the total order, keep the best.
#include <numeric>
#include <vector>

#include "core/parallel.h"
#include "cpu/reference/elements.h"
#include "cpu/reference/numerics.h"
#include "cpu/reference/reference_kernels.h"

namespace tessera::cpu::reference {
namespace {

float score_block(const ops::QsaSelectArgs& args, const float* queries,
                  const std::vector<float>& key) {
  const auto dim = static_cast<size_t>(args.shape.index_dim);
  double sum = 0;
  for (int head = 0; head < args.shape.index_heads; ++head) {
    const double product =
        dot(queries + static_cast<size_t>(head) * dim, key.data(), args.shape.index_dim);
    if (!(product <= 0)) sum += product;  // a NaN product stays NaN
  }
  return static_cast<float>(sum / std::sqrt(args.shape.index_dim));
}

std::vector<float> score_all(const ops::QsaSelectArgs& args, const ops::RowSpan& span, size_t row,
                             int64_t num_blocks) {
  const auto dim = static_cast<size_t>(args.shape.index_dim);
  const ops::PageRef& cache = args.cache.index_keys;
  const float* queries =
      floats(args.index_q) + row * static_cast<size_t>(args.shape.index_heads) * dim;
  std::vector<float> scores(static_cast<size_t>(num_blocks)), key(dim);
  for (int64_t block = 0; block < num_blocks; ++block) {
    const std::byte* page = page_of(cache, span, block * args.shape.block);
    const size_t at = static_cast<size_t>(block % args.shape.blocks_per_page()) * dim;
    load_elements(cache.dtype, page, at, key);
    scores[static_cast<size_t>(block)] = score_block(args, queries, key);
  }
  return scores;
}

/// The best `budget` ids: higher score, then lower id; NaN below every number.
std::vector<int32_t> best_blocks(const std::vector<float>& scores, int budget) {
  std::vector<int32_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t left, int32_t right) {
    const float left_score = scores[static_cast<size_t>(left)];
    const float right_score = scores[static_cast<size_t>(right)];
    if (std::isnan(left_score)) return false;
    return std::isnan(right_score) || left_score > right_score;
  });
  ids.resize(static_cast<size_t>(budget));
  std::sort(ids.begin(), ids.end());
  return ids;
}

void select_row(const ops::QsaSelectArgs& args, const ops::RowSpan& span, size_t row,
                int64_t position) {
  const int64_t num_blocks = (position + 1) / args.shape.block;
  int32_t* out = args.blocks + row * static_cast<size_t>(args.budget_blocks);
  if (num_blocks <= args.budget_blocks) {
    std::iota(out, out + num_blocks, 0);
    args.counts[row] = static_cast<int32_t>(num_blocks);
    return;
  }
  const auto best = best_blocks(score_all(args, span, row, num_blocks), args.budget_blocks);
  std::copy(best.begin(), best.end(), out);
  args.counts[row] = args.budget_blocks;
}

}  // namespace

void qsa_select(const ops::QsaSelectArgs& args) {
  for (const ops::RowSpan& span : args.batch.spans) {
    parallel_for(span.num_rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row)
        select_row(args, span, static_cast<size_t>(span.row_begin + row), span.position + row);
    });
  }
}

}  // namespace tessera::cpu::reference
