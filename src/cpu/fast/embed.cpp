// SPDX-License-Identifier: Apache-2.0
// Token embedding: one table row per token, widened once and copied to the other branches.
#include <cstring>

#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/row_math.h"

namespace tessera::cpu {

void fast_embed(const ops::EmbedArgs& args) {
  const int hidden = args.table.in_features;
  const double work = static_cast<double>(args.branches) * hidden;
  parallel_for(args.rows, grain_for(work), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* wide = floats(args.wide) + row * args.branches * hidden;
      widen_weight_row(args.table, args.ids[row], wide);
      for (int branch = 1; branch < args.branches; ++branch) {
        std::memcpy(wide + static_cast<ptrdiff_t>(branch) * hidden, wide,
                    static_cast<size_t>(hidden) * sizeof(float));
      }
    }
  });
}

}  // namespace tessera::cpu
