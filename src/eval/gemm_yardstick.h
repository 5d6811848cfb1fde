// SPDX-License-Identifier: Apache-2.0
// A well-known FP32 matrix product to hold ours against: OpenBLAS, opened at run time when
// installed.
#pragma once

#include <string>

namespace tessera {

struct GemmYardstick {
  double flops = 0;    // per second; 0: no library found
  std::string name{};  // "OpenBLAS sgemm, 2 threads"
};

/// Best of several products of about two seconds in all.
GemmYardstick measure_gemm_yardstick(int threads);

}  // namespace tessera
