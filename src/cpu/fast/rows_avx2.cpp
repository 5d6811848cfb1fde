// SPDX-License-Identifier: Apache-2.0
// Kernels of rows_level.h for AVX2 and FMA (x86-64-v3).
#include "cpu/fast/rows_kernels.h"
#include "cpu/fast/rows_scores.h"

namespace tessera::cpu {

const RowKernels& avx2_row_kernels() {
  static constexpr RowKernels kKernels = {"avx2+fma", lane_products, weighted_sum, delta_step,
                                          block_scores};
  return kKernels;
}

}  // namespace tessera::cpu
