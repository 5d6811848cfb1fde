// SPDX-License-Identifier: Apache-2.0
// Dense BF16 products through cuBLASLt, opened at run time: the arithmetic ceiling and the baseline
// of the dense benches.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace tessera::bench {

class DenseBaseline {
 public:
  DenseBaseline();
  ~DenseBaseline();
  DenseBaseline(const DenseBaseline&) = delete;
  DenseBaseline& operator=(const DenseBaseline&) = delete;

  /// False: the library is not on this machine.
  bool available() const { return state_ != nullptr; }

  /// y[rows, outs] = x[rows, ins] w[outs, ins]^T, BF16, FP32 accumulation, one algorithm per shape
  /// without split K. False when the library has none for this shape.
  bool product(cudaStream_t stream, const void* x, const void* w, void* y, int rows, int outs,
               int ins);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::bench
