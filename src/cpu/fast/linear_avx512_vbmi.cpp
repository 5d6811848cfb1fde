// SPDX-License-Identifier: Apache-2.0
// The product kernels for x86-64-v4 with VBMI: E4M3 decoded by table.
#include "cpu/fast/gemm_body.h"
#include "cpu/fast/linear_dot.h"

namespace tessera::cpu {

const LevelKernels& avx512_vbmi_kernels() {
  static constexpr LevelKernels kKernels = {"avx512+vbmi", dot_any, multiply_columns, gemm_any};
  return kKernels;
}

}  // namespace tessera::cpu
