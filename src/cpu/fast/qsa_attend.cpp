// SPDX-License-Identifier: Apache-2.0
// Sparse attention over gathered blocks. A prefill row walks its list in one run; a decode row's
// list is cut into runs of fixed length, which threads share when there are few rows.
#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/qsa_attend_tile.h"
#include "cpu/fast/ring.h"
#include "cpu/fast/row_math.h"

namespace tessera::cpu {
namespace {

constexpr int kDecodeRun = 256;  // tokens; fixed, so that a row's sums never depend on the launch

struct Row {
  const ops::RowSpan* span = nullptr;
  int row = 0;  // within the span
};

class Attention {
 public:
  Attention(const ops::QsaAttendArgs& args, Arena& scratch) : args_(args) {
    const ops::QsaShape& shape = args.shape;
    group_ = shape.heads / shape.kv_heads;
    parts_ = (group_ + kAttendLanes - 1) / kAttendLanes;
    for (const ops::RowSpan& span : args.batch.spans)
      for (int row = 0; row < span.num_rows; ++row) rows_.push_back({&span, row});
    const auto dim = static_cast<size_t>(shape.head_dim);
    const bool widen = args.cache.keys.dtype != DType::kF32;
    for (int thread = 0; thread < num_threads(); ++thread) {
      AttendWorkspace work;
      work.packed = scratch.take<float>(dim * kAttendLanes);
      work.logits = scratch.take<float>(size_t{kAttendTile} * kAttendLanes);
      work.widened = widen ? scratch.take<float>(kAttendTile * dim) : nullptr;
      work_.push_back(work);
    }
  }

  void run(Arena& scratch) {
    if (args_.batch.role == ops::Role::kDecode && num_pieces() < kPiecesPerThread * num_threads()) {
      run_shared(scratch);
    } else {
      run_pieces(scratch);
    }
  }

 private:
  static constexpr int kPiecesPerThread = 4;  // enough to balance threads by whole pieces

  /// A piece is one row's query heads of one kv head (a part of them when they exceed the lanes).
  int64_t num_pieces() const {
    return static_cast<int64_t>(rows_.size()) * args_.shape.kv_heads * parts_;
  }

  const Row& row_of(int64_t piece) const {
    return rows_[static_cast<size_t>(piece / (args_.shape.kv_heads * parts_))];
  }

  AttendHeads heads_of(int64_t piece) const {
    const auto kv_head = static_cast<int>(piece / parts_ % args_.shape.kv_heads);
    const int begin = static_cast<int>(piece % parts_) * kAttendLanes;
    return {kv_head, kv_head * group_ + begin, std::min(kAttendLanes, group_ - begin)};
  }

  TokenList list_of(const Row& row) const { return token_list(args_, *row.span, row.row); }

  int run_length(const TokenList& list) const {
    return args_.batch.role == ops::Role::kDecode ? kDecodeRun : list.size(args_.shape.block);
  }

  int num_runs(const TokenList& list) const {
    return (list.size(args_.shape.block) + kDecodeRun - 1) / kDecodeRun;
  }

  AttendState take_state(Arena& scratch) const {
    const auto heads = static_cast<size_t>(std::min(group_, kAttendLanes));
    AttendState state;
    state.top = scratch.take<float>(kAttendLanes);
    state.sum = scratch.take<float>(kAttendLanes);
    state.out = scratch.take<float>(heads * static_cast<size_t>(args_.shape.head_dim));
    return state;
  }

  void attend(int64_t piece, const TokenList& list, int first, int last, int thread,
              const AttendState& state) const {
    const Row& row = row_of(piece);
    attend_run(args_, *row.span, row.row, heads_of(piece), list, first, last,
               work_[static_cast<size_t>(thread)], state);
  }

  void merge(int64_t piece, const AttendState& next, const AttendState& into) const {
    merge_runs(next, heads_of(piece).count, args_.shape.head_dim, into);
  }

  void finish(int64_t piece, const AttendState& state) const {
    const int64_t dim = args_.shape.head_dim;
    const Row& row = row_of(piece);
    const AttendHeads heads = heads_of(piece);
    const int64_t first =
        (row.span->row_begin + row.row) * int64_t{args_.shape.heads} + heads.first;
    for (int head = 0; head < heads.count; ++head) {
      const int64_t at = first + head;
      gate_row(state.out + head * dim, 1.0F / state.sum[head],
               floats(args_.q_gate) + (2 * at + 1) * dim, floats(args_.out) + at * dim,
               args_.shape.head_dim);
    }
  }

  /// Each thread takes whole pieces and merges their runs as it goes.
  void run_pieces(Arena& scratch) {
    std::vector<AttendState> totals, parts;
    for (int thread = 0; thread < num_threads(); ++thread) {
      totals.push_back(take_state(scratch));
      parts.push_back(take_state(scratch));
    }
    parallel_for_dynamic(num_pieces(), 1, [&](int64_t piece, int64_t, int thread) {
      const AttendState& total = totals[static_cast<size_t>(thread)];
      const AttendState& part = parts[static_cast<size_t>(thread)];
      const TokenList list = list_of(row_of(piece));
      const int size = list.size(args_.shape.block);
      const int length = run_length(list);
      attend(piece, list, 0, std::min(length, size), thread, total);
      for (int first = length; first < size; first += length) {
        attend(piece, list, first, std::min(first + length, size), thread, part);
        merge(piece, part, total);
      }
      finish(piece, total);
    });
  }

  /// Few pieces: threads take runs, then the runs of each piece are merged in list order.
  void run_shared(Arena& scratch) {
    struct Run {
      int64_t piece = 0;
      int first = 0;
      AttendState state;
    };
    std::vector<Run> runs;
    for (int64_t piece = 0; piece < num_pieces(); ++piece) {
      const int count = num_runs(list_of(row_of(piece)));
      for (int run = 0; run < count; ++run)
        runs.push_back({piece, run * kDecodeRun, take_state(scratch)});
    }
    parallel_for_dynamic(
        static_cast<int64_t>(runs.size()), 1, [&](int64_t at, int64_t, int thread) {
          const Run& run = runs[static_cast<size_t>(at)];
          const TokenList list = list_of(row_of(run.piece));
          const int last = std::min(run.first + kDecodeRun, list.size(args_.shape.block));
          attend(run.piece, list, run.first, last, thread, run.state);
        });
    for (size_t at = 0; at < runs.size();) {
      const Run& total = runs[at];
      for (++at; at < runs.size() && runs[at].piece == total.piece; ++at)
        merge(total.piece, runs[at].state, total.state);
      finish(total.piece, total.state);
    }
  }

  const ops::QsaAttendArgs& args_;
  int group_ = 0;
  int parts_ = 0;
  std::vector<Row> rows_{};
  std::vector<AttendWorkspace> work_{};
};

}  // namespace

void fast_qsa_attend(const ops::QsaAttendArgs& args, Arena& scratch) {
  if (args.batch.num_rows > 0) Attention(args, scratch).run(scratch);
}

}  // namespace tessera::cpu
