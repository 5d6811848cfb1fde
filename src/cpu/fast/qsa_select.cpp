// SPDX-License-Identifier: Apache-2.0
// Block selection: neighbouring rows of a sequence score a page of index keys together, then each
// row takes its exact top blocks from its own scores.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/qsa_pages.h"
#include "cpu/fast/qsa_select_topk.h"
#include "cpu/fast/row_math.h"
#include "cpu/fast/rows_level.h"
#include "cpu/fast/simd.h"

namespace tessera::cpu {
namespace {

constexpr int kLaneGroup = 8;    // lanes are padded to half of the widest vector
constexpr int kGroupLanes = 64;  // query heads of all rows of a group, as far as they fit

/// Consecutive rows of one span whose blocks exceed the budget.
struct Group {
  const ops::RowSpan* span = nullptr;
  int first = 0;  // row within the span
  int rows = 0;
};

struct Sizes {
  int group_rows = 0;
  int lanes = 0;
  int page_blocks = 0;
  size_t max_blocks = 0;
};

/// Per-thread buffers of scoring, and of one group's scores.
struct Workspace {
  float* keys = nullptr;              // [page_blocks, index_dim]
  float* products = nullptr;          // [page_blocks, lanes]
  float* packed = nullptr;            // [index_dim, lanes]
  float* scores = nullptr;            // [group_rows, max_blocks]
  uint32_t* order = nullptr;          // [max_blocks]
  int32_t* candidates = nullptr;      // [max_blocks]
  float* candidate_scores = nullptr;  // [max_blocks]
};

int64_t visible_blocks(const ops::QsaSelectArgs& args, const ops::RowSpan& span, int row) {
  return (span.position + row + 1) / args.shape.block;
}

std::vector<Group> plan_groups(const ops::QsaSelectArgs& args, int group_rows) {
  std::vector<Group> groups;
  for (const ops::RowSpan& span : args.batch.spans) {
    for (int row = 0; row < span.num_rows; ++row) {
      if (visible_blocks(args, span, row) <= args.budget_blocks) continue;
      if (groups.empty() || groups.back().span != &span || groups.back().rows == group_rows)
        groups.push_back({&span, row, 0});
      ++groups.back().rows;
    }
  }
  return groups;
}

/// Lane `head * rows + row` holds that head of that row; lanes beyond are zero. Decoded rows are
/// not packed: `score_page` reads their queries where they are.
void pack_queries(const ops::QsaSelectArgs& args, const Group& group, int lanes, float* packed) {
  if (args.batch.role == ops::Role::kDecode) return;
  const ops::QsaShape& shape = args.shape;
  const int64_t first_row = group.span->row_begin + group.first;
  std::fill_n(packed, static_cast<size_t>(shape.index_dim) * static_cast<size_t>(lanes), 0.0F);
  for (int row = 0; row < group.rows; ++row) {
    for (int head = 0; head < shape.index_heads; ++head) {
      const float* query =
          floats(args.index_q) + ((first_row + row) * shape.index_heads + head) * shape.index_dim;
      float* lane = packed + head * group.rows + row;
      for (int d = 0; d < shape.index_dim; ++d) lane[static_cast<ptrdiff_t>(d) * lanes] = query[d];
    }
  }
}

/// scores[row][block] = scale * sum over heads of relu(product). The comparison keeps NaN, which
/// max() would turn into 0.
TESSERA_SIMD_CLONES
void sum_heads(float* __restrict products, int blocks, int lanes, int heads, int rows, float scale,
               size_t stride, float* __restrict scores) {
  for (int block = 0; block < blocks; ++block, products += lanes) {
#pragma omp simd
    for (int row = 0; row < rows; ++row)
      products[row] = products[row] <= 0.0F ? 0.0F : products[row];
    for (int head = 1; head < heads; ++head) {
      const float* __restrict more = products + static_cast<ptrdiff_t>(head) * rows;
#pragma omp simd
      for (int row = 0; row < rows; ++row) products[row] += more[row] <= 0.0F ? 0.0F : more[row];
    }
    for (int row = 0; row < rows; ++row)
      scores[static_cast<size_t>(row) * stride + static_cast<size_t>(block)] =
          products[row] * scale;
  }
}

/// Scores of a page's keys for the group's rows. Prompt rows share lanes; a decoded row must not
/// depend on its neighbours and is scored on its own, while the keys stay in the first-level cache.
void score_page(const ops::QsaSelectArgs& args, const Group& group, const Sizes& sizes,
                const float* keys, int count, const float* ahead, const float* packed,
                const Workspace& work, float* scores) {
  const ops::QsaShape& shape = args.shape;
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape.index_dim));
  if (args.batch.role == ops::Role::kDecode) {
    const int64_t first_row = group.span->row_begin + group.first;
    for (int row = 0; row < group.rows; ++row)
      row_kernels().block_scores(
          {.keys = keys,
           .count = count,
           .dim = shape.index_dim,
           .queries =
               floats(args.index_q) + (first_row + row) * shape.index_heads * shape.index_dim,
           .heads = shape.index_heads,
           .scale = scale,
           .scores = scores + static_cast<size_t>(row) * sizes.max_blocks,
           .ahead = row == 0 ? ahead : nullptr});
    return;
  }
  const float* rows[ops::kPageTokens];
  for (int block = 0; block < count; ++block)
    rows[block] = keys + static_cast<ptrdiff_t>(block) * shape.index_dim;
  row_kernels().lane_products({rows, count, shape.index_dim, packed, sizes.lanes, work.products});
  sum_heads(work.products, count, sizes.lanes, shape.index_heads, group.rows, scale,
            sizes.max_blocks, scores);
}

/// Scores of the group's rows for all blocks of pages [first_page, last_page).
void score_pages(const ops::QsaSelectArgs& args, const Group& group, const Sizes& sizes,
                 int64_t first_page, int64_t last_page, const float* packed, const Workspace& work,
                 float* scores) {
  const ops::QsaShape& shape = args.shape;
  const int64_t num_blocks = visible_blocks(args, *group.span, group.first + group.rows - 1);
  for (int64_t page = first_page; page < last_page; ++page) {
    const int64_t first_block = page * sizes.page_blocks;
    const auto count =
        static_cast<int>(std::min<int64_t>(sizes.page_blocks, num_blocks - first_block));
    const std::byte* stored =
        cached_index_key(args.cache.index_keys, shape, *group.span, first_block);
    const auto* keys = reinterpret_cast<const float*>(stored);
    const float* ahead = nullptr;
    if (args.cache.index_keys.dtype != DType::kF32) {
      widen_row(stored, args.cache.index_keys.dtype, 1.0F, work.keys, count * shape.index_dim);
      keys = work.keys;
    } else if (page + 1 < last_page) {
      ahead = reinterpret_cast<const float*>(cached_index_key(
          args.cache.index_keys, shape, *group.span, first_block + sizes.page_blocks));
    }
    score_page(args, group, sizes, keys, count, ahead, packed, work, scores + first_block);
  }
}

int64_t pages_of(const ops::QsaSelectArgs& args, const Group& group, const Sizes& sizes) {
  const int64_t blocks = visible_blocks(args, *group.span, group.first + group.rows - 1);
  return (blocks + sizes.page_blocks - 1) / sizes.page_blocks;
}

void choose(const ops::QsaSelectArgs& args, const Group& group, int row, const float* scores,
            uint32_t* order) {
  const int64_t launch_row = group.span->row_begin + group.first + row;
  const int64_t count = visible_blocks(args, *group.span, group.first + row);
  select_top(scores, static_cast<int>(count), args.budget_blocks, order,
             args.blocks + launch_row * args.budget_blocks);
  args.counts[launch_row] = args.budget_blocks;
}

void select_identity(const ops::QsaSelectArgs& args) {
  for (const ops::RowSpan& span : args.batch.spans) {
    for (int row = 0; row < span.num_rows; ++row) {
      const int64_t count = visible_blocks(args, span, row);
      if (count > args.budget_blocks) continue;
      const int64_t launch_row = span.row_begin + row;
      int32_t* blocks = args.blocks + launch_row * args.budget_blocks;
      std::iota(blocks, blocks + count, 0);
      args.counts[launch_row] = static_cast<int32_t>(count);
    }
  }
}

class Selection {
 public:
  Selection(const ops::QsaSelectArgs& args, Arena& scratch) : args_(args) {
    sizes_.group_rows = std::max(1, kGroupLanes / args.shape.index_heads);
    groups_ = plan_groups(args, sizes_.group_rows);
    if (groups_.empty()) return;
    set_sizes();
    for (int thread = 0; thread < num_threads(); ++thread) work_.push_back(take(scratch));
    best_ = scratch.take<int32_t>(work_.size() * static_cast<size_t>(sizes_.group_rows) *
                                  (static_cast<size_t>(args.budget_blocks) + 1));
  }

  void run() {
    if (static_cast<int>(groups_.size()) >= num_threads()) {
      run_groups();
    } else {
      for (const Group& group : groups_) run_shared(group);
    }
  }

 private:
  void set_sizes() {
    int widest = 0;
    for (const Group& group : groups_) {
      widest = std::max(widest, group.rows);
      sizes_.max_blocks = std::max(
          sizes_.max_blocks,
          static_cast<size_t>(visible_blocks(args_, *group.span, group.first + group.rows - 1)));
    }
    sizes_.group_rows = widest;
    sizes_.lanes = static_cast<int>(
        align_up(static_cast<size_t>(widest * args_.shape.index_heads), size_t{kLaneGroup}));
    sizes_.page_blocks = args_.shape.blocks_per_page();
  }

  Workspace take(Arena& scratch) const {
    const auto lanes = static_cast<size_t>(sizes_.lanes);
    const auto dim = static_cast<size_t>(args_.shape.index_dim);
    const auto blocks = static_cast<size_t>(sizes_.page_blocks);
    Workspace work;
    work.keys = scratch.take<float>(blocks * dim);
    work.products = scratch.take<float>(blocks * lanes);
    work.packed = scratch.take<float>(dim * lanes);
    work.scores = scratch.take<float>(static_cast<size_t>(sizes_.group_rows) * sizes_.max_blocks);
    work.order = scratch.take<uint32_t>(sizes_.max_blocks);
    work.candidates = scratch.take<int32_t>(sizes_.max_blocks);
    work.candidate_scores = scratch.take<float>(sizes_.max_blocks);
    return work;
  }

  /// Enough groups for all threads: each thread takes whole groups.
  void run_groups() {
    const auto count = static_cast<int64_t>(groups_.size());
    parallel_for_dynamic(count, 1, [&](int64_t begin, int64_t end, int thread) {
      const Workspace& work = work_[static_cast<size_t>(thread)];
      for (int64_t at = begin; at < end; ++at) {
        const Group& group = groups_[static_cast<size_t>(at)];
        pack_queries(args_, group, sizes_.lanes, work.packed);
        score_pages(args_, group, sizes_, 0, pages_of(args_, group, sizes_), work.packed, work,
                    work.scores);
        for (int row = 0; row < group.rows; ++row)
          choose(args_, group, row, work.scores + static_cast<size_t>(row) * sizes_.max_blocks,
                 work.order);
      }
    });
  }

  /// Few groups (decode): threads share the pages of a group, and each takes the best blocks of its
  /// part; a row's best blocks are among those, whatever the parts.
  void run_shared(const Group& group) {
    constexpr int64_t kPageGrain = 8;
    float* packed = work_[0].packed;
    float* scores = work_[0].scores;
    pack_queries(args_, group, sizes_.lanes, packed);
    const int64_t pages = pages_of(args_, group, sizes_);
    const int64_t parts = std::min<int64_t>(num_threads(), (pages + kPageGrain - 1) / kPageGrain);
    parallel_for(parts, 1, [&](int64_t begin, int64_t end, int thread) {
      const Workspace& work = work_[static_cast<size_t>(thread)];
      for (int64_t part = begin; part < end; ++part) {
        const int64_t first = pages * part / parts, last = pages * (part + 1) / parts;
        score_pages(args_, group, sizes_, first, last, packed, work, scores);
        for (int row = 0; row < group.rows; ++row)
          choose_part(group, row, first * sizes_.page_blocks, last * sizes_.page_blocks, work.order,
                      best_of(part, row));
      }
    });
    parallel_for(group.rows, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t row = begin; row < end; ++row)
        choose_of_parts(group, static_cast<int>(row), parts, work_[static_cast<size_t>(thread)]);
    });
  }

  int32_t* best_of(int64_t part, int row) const {
    return best_ + (part * sizes_.group_rows + row) * (args_.budget_blocks + 1);
  }

  /// The best of blocks [first, last) that the row sees: their count, then the blocks, ascending.
  void choose_part(const Group& group, int row, int64_t first, int64_t last, uint32_t* order,
                   int32_t* best) const {
    const int64_t end = std::min(last, visible_blocks(args_, *group.span, group.first + row));
    const auto count = static_cast<int>(std::max<int64_t>(end - first, 0));
    const auto origin = static_cast<int32_t>(first);
    *best++ = std::min(count, args_.budget_blocks);
    if (count <= args_.budget_blocks) {
      std::iota(best, best + count, origin);
      return;
    }
    select_top(scores_of(row) + first, count, args_.budget_blocks, order, best);
    for (int at = 0; at < args_.budget_blocks; ++at) best[at] += origin;
  }

  /// Parts are in order of blocks and so are the blocks of a part: the first ties win, as ever.
  void choose_of_parts(const Group& group, int row, int64_t parts, const Workspace& work) const {
    const float* scores = scores_of(row);
    int count = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const int32_t* best = best_of(part, row);
      for (int at = 1; at <= *best; ++at, ++count) {
        work.candidates[count] = best[at];
        work.candidate_scores[count] = scores[best[at]];
      }
    }
    const int64_t launch_row = group.span->row_begin + group.first + row;
    int32_t* blocks = args_.blocks + launch_row * args_.budget_blocks;
    select_top(work.candidate_scores, count, args_.budget_blocks, work.order, blocks);
    for (int at = 0; at < args_.budget_blocks; ++at) blocks[at] = work.candidates[blocks[at]];
    args_.counts[launch_row] = args_.budget_blocks;
  }

  const float* scores_of(int row) const {
    return work_[0].scores + static_cast<size_t>(row) * sizes_.max_blocks;
  }

  const ops::QsaSelectArgs& args_;
  Sizes sizes_{};
  std::vector<Group> groups_{};
  std::vector<Workspace> work_{};
  int32_t* best_ = nullptr;  // [parts, group_rows, 1 + budget_blocks]
};

}  // namespace

void fast_qsa_select(const ops::QsaSelectArgs& args, Arena& scratch) {
  select_identity(args);
  Selection(args, scratch).run();
}

}  // namespace tessera::cpu
