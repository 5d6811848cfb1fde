// SPDX-License-Identifier: Apache-2.0
// CUDA errors become exceptions: the environment failed, not the request.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <stdexcept>

namespace tessera::cuda {

class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t status, const std::source_location& at);
  cudaError_t status() const { return status_; }

 private:
  cudaError_t status_;
};

inline void check(cudaError_t status,
                  const std::source_location& at = std::source_location::current()) {
  if (status != cudaSuccess) [[unlikely]]
    throw CudaError(status, at);
}

}  // namespace tessera::cuda
