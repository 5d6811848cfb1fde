// SPDX-License-Identifier: Apache-2.0
// Vectors pushed into the shared memory of another block of the cluster (sm_90), counted on a
// barrier there: whoever waits sees them, without a barrier of the cluster or a fence.
#pragma once

#include <cstdint>

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// Both addresses are remote ones (cluster.cuh); counts 16 bytes.
__device__ __forceinline__ void push_counted(uint32_t address, const float4& values,
                                             uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "f"(values.x), "f"(values.y), "f"(values.z), "f"(values.w), "r"(barrier)
      : "memory");
}
/// Counts 8 bytes.
__device__ __forceinline__ void push_counted(uint32_t address, const float2& values,
                                             uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          address),
      "f"(values.x), "f"(values.y), "r"(barrier)
      : "memory");
}

#endif

}  // namespace tessera::cuda::device
