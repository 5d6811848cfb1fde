// SPDX-License-Identifier: Apache-2.0
// Does this program hold machine code for a device? Asked before the first launch fails.
#include <cuda_runtime_api.h>

#include <string>

#include "cuda/cuda_backend.h"

namespace tessera::cuda {
namespace {

__global__ void any_kernel() {}

}  // namespace

std::string why_no_code(int device) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) != cudaSuccess)
    return "its properties cannot be read";
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess || cudaSetDevice(device) != cudaSuccess)
    return "it cannot be selected";
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, any_kernel);
  cudaSetDevice(current);
  if (status == cudaSuccess) return {};
  cudaGetLastError();  // the next call must not find it
  const std::string name = std::to_string(properties.major) + std::to_string(properties.minor);
  if (status == cudaErrorNoKernelImageForDevice)
    return "sm_" + name +
           ", for which this program has no code (build with -DTESSERA_CUDA_ARCHS=" + name +
           "-real)";
  return cudaGetErrorString(status);
}

}  // namespace tessera::cuda
