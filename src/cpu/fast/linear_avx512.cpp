// SPDX-License-Identifier: Apache-2.0
// The product kernels for x86-64-v4: 64-byte vectors and 32 registers.
#include "cpu/fast/gemm_body.h"
#include "cpu/fast/linear_dot.h"

namespace tessera::cpu {

const LevelKernels& avx512_kernels() {
  static constexpr LevelKernels kKernels = {"avx512", dot_any, multiply_columns, gemm_any};
  return kKernels;
}

}  // namespace tessera::cpu
