// SPDX-License-Identifier: Apache-2.0
// Device memory whose copies are ordered with the ops of one stream.
#pragma once

#include <cuda_runtime_api.h>

#include "core/memory.h"

namespace tessera::cuda {

class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(cudaStream_t stream) : stream_(stream) {}

  std::byte* allocate(size_t bytes) override;
  void release(std::byte* data) noexcept override;
  void copy_in(void* to, const void* host_from, size_t bytes) override;
  void copy_out(void* host_to, const void* from, size_t bytes) override;
  void copy(void* to, const void* from, size_t bytes) override;
  void zero(void* to, size_t bytes) override;
  size_t free_bytes() const override;
  bool on_host() const override { return false; }

 private:
  cudaStream_t stream_;
};

}  // namespace tessera::cuda
