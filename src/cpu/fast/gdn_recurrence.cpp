// SPDX-License-Identifier: Apache-2.0
// Decode form of GDN: token by token. Columns of the state matrix do not interact, so a slab of
// them stays in the first-level cache while all tokens of the launch pass over it.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/fast/gdn_parts.h"
#include "cpu/fast/rows_level.h"

namespace tessera::cpu {

namespace {

/// A slab of columns of a state matrix.
struct Slab {
  float* state = nullptr;
  int64_t stride = 0;
  int column = 0;
  int columns = 0;
};

DeltaStep step_of(const ops::GdnShape& shape, const Slab& slab) {
  DeltaStep step;
  step.state = slab.state;
  step.state_stride = slab.stride;
  step.key_dim = shape.key_dim;
  step.columns = slab.columns;
  return step;
}

/// Applies what the last verify launch left pending and the caller accepted. The update of the
/// matrix does not depend on the query: the key stands in for it, and the output goes nowhere.
void replay(const ops::GdnArgs& args, const ops::RowSpan& span, int head, const Slab& slab) {
  const ops::GdnPending layout{args.shape};
  std::byte* pending = span.slot + args.pending_offset;
  float unused[kDeltaColumns];
  for (int row = 0; row < args.accepted_rows(span.slot); ++row) {
    const float* stored = layout.row(pending, row);
    DeltaStep step = step_of(args.shape, slab);
    step.key = step.query = stored + layout.key_at(head);
    step.value = stored + layout.value_at(head) + slab.column;
    step.decay = std::exp(stored[layout.log_decay_at() + static_cast<size_t>(head)]);
    step.beta = stored[layout.beta_at() + static_cast<size_t>(head)];
    step.out = unused;
    row_kernels().delta_step(step);
  }
}

/// The rows of the launch; the slab advances by all of them.
void run_rows(const ops::GdnArgs& args, const GdnWindow& window, int64_t first_row,
              int64_t last_row, int head, const GdnPrepared& prepared, const Slab& slab) {
  const ops::GdnShape& shape = args.shape;
  const GdnHead at = gdn_head(shape, head);
  for (int64_t launch_row = first_row; launch_row < last_row; ++launch_row) {
    const int64_t row = launch_row - window.first_row;
    const float* mixed = prepared.mixed + row * shape.channels();
    const int64_t gate = row * shape.value_heads + head;
    DeltaStep step = step_of(shape, slab);
    step.key = mixed + at.key_at;
    step.query = mixed + at.query_at;
    step.value = mixed + at.value_at + slab.column;
    step.key_query = prepared.key_query[row * shape.key_heads + at.key_head];
    step.decay = std::exp(prepared.log_decay[gate]);
    step.beta = prepared.beta[gate];
    step.out =
        floats(args.out) + (launch_row * shape.value_heads + head) * shape.value_dim + slab.column;
    row_kernels().delta_step(step);
  }
}

void leave_pending(const ops::GdnArgs& args, const GdnWindow& window, const ops::RowSpan& span,
                   int head, const GdnPrepared& prepared) {
  const ops::GdnShape& shape = args.shape;
  const ops::GdnPending layout{shape};
  const GdnHead at = gdn_head(shape, head);
  for (int row = 0; row < std::min(span.num_rows, args.pending_rows); ++row) {
    const int64_t window_row = span.row_begin + row - window.first_row;
    const float* mixed = prepared.mixed + window_row * shape.channels();
    const int64_t gate = window_row * shape.value_heads + head;
    float* stored = layout.row(span.slot + args.pending_offset, row);
    std::copy_n(mixed + at.key_at, shape.key_dim, stored + layout.key_at(head));
    std::copy_n(mixed + at.value_at, shape.value_dim, stored + layout.value_at(head));
    stored[layout.log_decay_at() + static_cast<size_t>(head)] = prepared.log_decay[gate];
    stored[layout.beta_at() + static_cast<size_t>(head)] = prepared.beta[gate];
  }
}

}  // namespace

void gdn_run_recurrence(const ops::GdnArgs& args, const GdnWindow& window,
                        std::span<const GdnChunk> chunks, int head, const GdnPrepared& prepared) {
  const ops::GdnShape& shape = args.shape;
  const ops::RowSpan& span = *chunks.front().span;
  const int64_t first_row = chunks.front().launch_row();
  const int64_t last_row = chunks.back().launch_row() + chunks.back().rows;
  float* matrix = gdn_matrix(args, span, head);
  std::vector<float> copy(args.verify ? static_cast<size_t>(shape.key_dim) * kDeltaColumns : 0);
  for (int column = 0; column < shape.value_dim; column += kDeltaColumns) {
    Slab slab{.state = matrix + column,
              .stride = shape.value_dim,
              .column = column,
              .columns = std::min(kDeltaColumns, shape.value_dim - column)};
    if (args.verify) {
      replay(args, span, head, slab);
      for (int key = 0; key < shape.key_dim; ++key)
        std::copy_n(slab.state + key * slab.stride, slab.columns,
                    copy.data() + static_cast<ptrdiff_t>(key) * kDeltaColumns);
      slab.state = copy.data();
      slab.stride = kDeltaColumns;
    }
    run_rows(args, window, first_row, last_row, head, prepared, slab);
  }
  if (args.verify) leave_pending(args, window, span, head, prepared);
  for (int64_t launch_row = first_row; launch_row < last_row; ++launch_row)
    gdn_finish_row(args, launch_row, head);
}

}  // namespace tessera::cpu
