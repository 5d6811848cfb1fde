// SPDX-License-Identifier: Apache-2.0
// Small FP32 matrix products on one thread, for callers that run inside their own parallel region.
#pragma once

#include <cstdint>

namespace tessera::cpu {

/// Row-major block; `stride` floats from one row to the next.
struct GemmIn {
  const float* data = nullptr;
  int64_t stride = 0;
};

struct GemmOut {
  float* data = nullptr;
  int64_t stride = 0;
  bool accumulate = false;  // add to what is there instead of overwriting it
};

/// Sizes of C[m, n] = A[m, k] B[k, n]. Any of them may be 0 (k = 0 writes zeros or adds nothing).
struct GemmSize {
  int m = 0;
  int n = 0;
  int k = 0;
};

/// No allocation, about 100 KiB of stack. Per output the order of the sum depends on k alone, so
/// cutting m or n into blocks does not change a bit. C must not overlap A or B.
void gemm_nt(GemmSize size, GemmIn a, GemmIn b, GemmOut c);  // a [m, k], b [n, k]
void gemm_nn(GemmSize size, GemmIn a, GemmIn b, GemmOut c);  // a [m, k], b [k, n]
void gemm_tn(GemmSize size, GemmIn a, GemmIn b, GemmOut c);  // a [k, m], b [k, n]

}  // namespace tessera::cpu
