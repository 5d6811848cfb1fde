// SPDX-License-Identifier: Apache-2.0
// Plain allocations and stream-ordered copies.
#include "cuda/device_memory.h"

#include <new>

#include "cuda/check.h"

namespace tessera::cuda {

CudaError::CudaError(cudaError_t status, const std::source_location& at)
    : std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status) + " (" +
                         cudaGetErrorName(status) + ") at " + at.file_name() + ":" +
                         std::to_string(at.line())),
      status_(status) {}

std::byte* DeviceMemory::allocate(size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the error is reported here and must not surface again
    throw std::bad_alloc();
  }
  check(status);
  return static_cast<std::byte*>(data);
}

void DeviceMemory::release(std::byte* data) noexcept {
  cudaFree(data);  // waits for the device; an error here has been seen by an op before
}

void DeviceMemory::copy_in(void* to, const void* host_from, size_t bytes) {
  if (bytes == 0) return;
  // From pageable memory the call returns when the source has been read into a staging buffer.
  check(cudaMemcpyAsync(to, host_from, bytes, cudaMemcpyHostToDevice, stream_));
}

void DeviceMemory::copy_out(void* host_to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(host_to, from, bytes, cudaMemcpyDeviceToHost, stream_));
  check(cudaStreamSynchronize(stream_));
}

void DeviceMemory::copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
}

void DeviceMemory::zero(void* to, size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(to, 0, bytes, stream_));
}

size_t DeviceMemory::free_bytes() const {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total));
  return free;
}

}  // namespace tessera::cuda
