// SPDX-License-Identifier: Apache-2.0
// The row kernels of the best instruction set.
#include "cpu/fast/rows_level.h"

namespace tessera::cpu {

RowLevels supported_row_levels() {
  RowLevels list;
  const auto add = [&list](const RowKernels& level) { list.levels[list.count++] = &level; };
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && avx2) add(avx512_row_kernels());
  if (avx2) add(avx2_row_kernels());
#endif
  add(base_row_kernels());
  return list;
}

const RowKernels& row_kernels() {
  static const RowKernels& best = *supported_row_levels().levels[0];
  return best;
}

}  // namespace tessera::cpu
