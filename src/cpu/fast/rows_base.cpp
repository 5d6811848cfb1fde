// SPDX-License-Identifier: Apache-2.0
// Kernels of rows_level.h for any x86-64 and other processors.
#include "cpu/fast/rows_kernels.h"
#include "cpu/fast/rows_scores.h"

namespace tessera::cpu {

const RowKernels& base_row_kernels() {
  static constexpr RowKernels kKernels = {"baseline", lane_products, weighted_sum, delta_step,
                                          block_scores};
  return kKernels;
}

}  // namespace tessera::cpu
