// SPDX-License-Identifier: Apache-2.0
// Forwards the small products to the kernels of this processor.
#include "cpu/fast/gemm_tile.h"

#include "cpu/fast/linear_level.h"

namespace tessera::cpu {

void gemm_nt(GemmSize size, GemmIn a, GemmIn b, GemmOut c) {
  level_kernels().gemm(GemmForm::kNT, size, a, b, c);
}

void gemm_nn(GemmSize size, GemmIn a, GemmIn b, GemmOut c) {
  level_kernels().gemm(GemmForm::kNN, size, a, b, c);
}

void gemm_tn(GemmSize size, GemmIn a, GemmIn b, GemmOut c) {
  level_kernels().gemm(GemmForm::kTN, size, a, b, c);
}

}  // namespace tessera::cpu
