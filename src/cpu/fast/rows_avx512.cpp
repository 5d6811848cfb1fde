// SPDX-License-Identifier: Apache-2.0
// Kernels of rows_level.h for AVX-512 (x86-64-v4).
#include "cpu/fast/rows_kernels.h"
#include "cpu/fast/rows_scores.h"

namespace tessera::cpu {

const RowKernels& avx512_row_kernels() {
  static constexpr RowKernels kKernels = {"avx512", lane_products, weighted_sum, delta_step,
                                          block_scores};
  return kKernels;
}

}  // namespace tessera::cpu
