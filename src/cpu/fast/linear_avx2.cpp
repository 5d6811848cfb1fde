// SPDX-License-Identifier: Apache-2.0
// The product kernels for x86-64-v3: 32-byte vectors and FMA.
#include "cpu/fast/gemm_body.h"
#include "cpu/fast/linear_dot.h"

namespace tessera::cpu {

const LevelKernels& avx2_kernels() {
  static constexpr LevelKernels kKernels = {"avx2+fma", dot_any, multiply_columns, gemm_any};
  return kKernels;
}

}  // namespace tessera::cpu
