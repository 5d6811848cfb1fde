// SPDX-License-Identifier: Apache-2.0
// Thread block clusters (sm_90): who this block is, barriers, and reads from the shared memory of
// the other blocks. Before sm_90, and in launches without a cluster, a block is alone in its
// cluster.
#pragma once

#include <cstdint>

#include "cuda/device/mma.cuh"

namespace tessera::cuda::device {

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}

__device__ __forceinline__ int cluster_blocks() {
  uint32_t count = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
#endif
  return static_cast<int>(count);
}

/// Every thread of every block of the cluster arrives once and waits once per phase. What a thread
/// did to memory before it arrived is visible to all after they waited.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

/// Address of the variable of block `rank` that lies where `shared` lies in this block.
__device__ __forceinline__ uint32_t remote_address(const void* shared, int rank) {
  uint32_t address = shared_address(shared);
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(shared)), "r"(rank));
#endif
  return address;
}

__device__ __forceinline__ uint4 load_remote(uint32_t address) {
  uint4 value;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
#else
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
#endif
  return value;
}

/// Visible to the block that owns the address after the next cluster barrier.
__device__ __forceinline__ void store_remote(uint32_t address, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#else
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#endif
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/// Stores to the shared memory of another block and counts 4 bytes on a barrier of that block
/// (copy.cuh): whoever waits there sees the value. Both addresses are remote ones.
__device__ __forceinline__ void store_remote_counted(uint32_t address, float value,
                                                     uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address),
      "f"(value), "r"(barrier)
      : "memory");
}

/// cluster_arrive that orders nothing but initialised barriers (fence_barrier_init).
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
#endif

}  // namespace tessera::cuda::device
