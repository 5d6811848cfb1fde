// SPDX-License-Identifier: Apache-2.0
// What every op of the CUDA backend works with: stream, device numbers, the batch of the current
// launch and scratch memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <unordered_map>
#include <utility>

#include "cuda/check.h"
#include "cuda/device/batch.cuh"
#include "cuda/gpu_spec.h"

namespace tessera::cuda {

class Context {
 public:
  virtual ~Context() = default;

  cudaStream_t stream() const { return stream_; }
  const GpuSpec& gpu() const { return gpu_; }
  /// Of the last `begin`; equal for every repetition of a recorded launch but for its contents.
  const device::Batch& batch() const { return batch_; }
  /// Programmatic dependent launch on every edge; off for measuring and debugging.
  bool pdl() const { return pdl_; }

  /// Device memory for the intermediate results of one op, 256-byte aligned. Every call of an op
  /// gets the same region again, so a kernel may write it only after wait_for_inputs(). Contents
  /// are arbitrary. Several pieces: take them from one call.
  virtual void* scratch(size_t bytes) = 0;
  /// Device memory that is zero once and then belongs to the caller for good: arrival counters and
  /// the like. `tag` names the owner (the address of a constant of the op); same tag, same memory.
  virtual void* persistent(const void* tag, size_t bytes) = 0;
  /// Host memory that kernels may read and write, for what crosses over in each round. Same tag,
  /// same memory, until more is asked for.
  virtual void* pinned(const void* tag, size_t bytes) = 0;

  /// Raises the shared memory limit of a kernel when needed, once per kernel and size.
  void prepare_kernel(const void* kernel, size_t shared_bytes) const;

 protected:
  cudaStream_t stream_ = nullptr;
  GpuSpec gpu_{};
  device::Batch batch_{};
  bool pdl_ = true;

 private:
  mutable std::unordered_map<const void*, size_t> prepared_{};  // shared bytes by kernel
};

/// Launch shape. `cluster` > 1 needs sm_90.
struct LaunchShape {
  dim3 grid{1, 1, 1};
  dim3 block{1, 1, 1};
  size_t shared_bytes = 0;
  unsigned cluster = 1;
};

/// Launches `kernel(args...)` on the context's stream, with the PDL attribute when it is on. Raises
/// the shared memory limit of the kernel when needed. An empty grid launches nothing.
template <class... Params, class... Args>
void launch(const Context& context, const LaunchShape& shape, void (*kernel)(Params...),
            Args&&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  context.prepare_kernel(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (context.pdl() && context.gpu().compute_major >= 9) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = shape.cluster;
    attributes[count].val.clusterDim.y = 1;
    attributes[count++].val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = context.stream();
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...));
}

}  // namespace tessera::cuda
