// SPDX-License-Identifier: Apache-2.0
// Decode form of GDN: token by token. Columns of the state matrix do not interact, so a slab of
// them stays in the first-level cache while all tokens of the launch pass over it.
#include <algorithm>
#include <cmath>

#include "cpu/fast/gdn_parts.h"
#include "cpu/fast/rows_level.h"

namespace tessera::cpu {

void gdn_run_recurrence(const ops::GdnArgs& args, const GdnWindow& window,
                        std::span<const GdnChunk> chunks, int head, const GdnPrepared& prepared) {
  const ops::GdnShape& shape = args.shape;
  const GdnHead at = gdn_head(shape, head);
  const int64_t first_row = chunks.front().launch_row();
  const int64_t last_row = chunks.back().launch_row() + chunks.back().rows;
  float* matrix = gdn_matrix(args, *chunks.front().span, head);
  for (int column = 0; column < shape.value_dim; column += kDeltaColumns) {
    for (int64_t launch_row = first_row; launch_row < last_row; ++launch_row) {
      const int64_t row = launch_row - window.first_row;
      const float* mixed = prepared.mixed + row * shape.channels();
      const int64_t gate = row * shape.value_heads + head;
      DeltaStep step;
      step.state = matrix + column;
      step.state_stride = shape.value_dim;
      step.key_dim = shape.key_dim;
      step.columns = std::min(kDeltaColumns, shape.value_dim - column);
      step.key = mixed + at.key_at;
      step.query = mixed + at.query_at;
      step.value = mixed + at.value_at + column;
      step.key_query = prepared.key_query[row * shape.key_heads + at.key_head];
      step.decay = std::exp(prepared.log_decay[gate]);
      step.beta = prepared.beta[gate];
      step.out =
          floats(args.out) + (launch_row * shape.value_heads + head) * shape.value_dim + column;
      row_kernels().delta_step(step);
    }
  }
  for (int64_t launch_row = first_row; launch_row < last_row; ++launch_row)
    gdn_finish_row(args, launch_row, head);
}

}  // namespace tessera::cpu
