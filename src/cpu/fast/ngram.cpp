// SPDX-License-Identifier: Apache-2.0
// N-gram table gather: rows far apart in a table of many gigabytes, so each task asks for all rows
// of a token before it decodes the first one.
#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/row_math.h"

namespace tessera::cpu {

void fast_ngram_gather(const ops::NgramGatherArgs& args) {
  const ops::NgramTable& table = *args.table;
  const double work = static_cast<double>(args.heads) * table.row_dim;
  parallel_for(args.rows, grain_for(work), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t* table_rows = args.table_rows + row * args.heads;
      float* out = floats(args.out) + row * args.heads * table.row_dim;
      for (int head = 0; head < args.heads; ++head) {
        __builtin_prefetch(table.row(table_rows[head]));
      }
      for (int head = 0; head < args.heads; ++head) {
        widen_row(table.row(table_rows[head]), table.dtype, table.scale,
                  out + static_cast<ptrdiff_t>(head) * table.row_dim, table.row_dim);
      }
    }
  });
}

}  // namespace tessera::cpu
