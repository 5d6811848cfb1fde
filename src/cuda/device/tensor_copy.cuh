// SPDX-License-Identifier: Apache-2.0
// Boxes of tensors from global to shared memory by the copy engine (sm_90). The tensor, the box and
// its swizzle are in a map that the host encodes; one thread asks, a barrier counts the bytes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/device/copy.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// Fetches the map itself; before the first copy that uses it. The map must be a kernel parameter
/// (__grid_constant__).
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// The box at `at` (fastest dimension first). `shared` is aligned as the swizzle asks: 1024 bytes
/// for the 128-byte one. Elements outside the tensor become zero and count as bytes.
__device__ __forceinline__ void copy_box(void* shared, const CUtensorMap& map, const int (&at)[3],
                                         Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void copy_box(void* shared, const CUtensorMap& map, const int (&at)[4],
                                         Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void copy_box(void* shared, const CUtensorMap& map, const int (&at)[5],
                                         Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]),
      "r"(shared_address(barrier))
      : "memory");
}

#endif

}  // namespace tessera::cuda::device
