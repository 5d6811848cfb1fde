// SPDX-License-Identifier: Apache-2.0
// The draft layer's input: one embedding row and one wide row per token, bound by memory.
#include <algorithm>

#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/row_math.h"

namespace tessera::cpu {

void fast_draft_input(const ops::DraftInputArgs& args) {
  const int hidden = args.table.in_features;
  const int wide = args.branches * hidden;
  constexpr double kNormWork = 2;  // multiply-adds per element
  parallel_for(args.rows, grain_for(kNormWork * (wide + hidden)),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t row = begin; row < end; ++row) {
                   float* embedded = floats(args.embedded) + row * hidden;
                   widen_weight_row(args.table, args.ids[row], embedded);
                   rms_one_plus(embedded, args.norm_embedding, args.eps, embedded, hidden);
                   const int64_t source = args.wide_rows[row];
                   rms_one_plus(floats(args.wide) + source * wide, args.norm_hidden, args.eps,
                                floats(args.normed) + row * wide, wide);
                   std::fill_n(args.inject + row * args.branches, args.branches, 0.0F);
                 }
               });
}

}  // namespace tessera::cpu
