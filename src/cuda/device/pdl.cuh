// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch: a kernel may start while its predecessor still runs. Before the
// wait it may only touch constants (weights); after it, everything earlier kernels wrote is there.
#pragma once

namespace tessera::cuda::device {

/// Until every earlier kernel of the stream has finished and its writes are visible. Without the
/// launch attribute it returns at once.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel of the stream start its preamble once every block has called this or ended.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tessera::cuda::device
