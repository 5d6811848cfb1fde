// SPDX-License-Identifier: Apache-2.0
// The product kernels for any processor: 16-byte vectors.
#include "cpu/fast/gemm_body.h"
#include "cpu/fast/linear_dot.h"

namespace tessera::cpu {

const LevelKernels& base_kernels() {
  static constexpr LevelKernels kKernels = {"baseline", dot_any, multiply_columns, gemm_any};
  return kKernels;
}

}  // namespace tessera::cpu
