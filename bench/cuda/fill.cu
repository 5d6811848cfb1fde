// SPDX-License-Identifier: Apache-2.0
// Fills buffers by a counter-based hash: the same data in every run.
#include "bench/cuda/fill.h"

#include <algorithm>

#include "cuda/check.h"
#include "cuda/device/bf16.cuh"

namespace tessera::bench {
namespace {

constexpr int kThreads = 256;
constexpr size_t kMaxBlocks = 4096;

/// Finaliser of splitmix64.
__device__ uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    fill(T* data, size_t count, float mean, float half_width, uint64_t seed) {
  constexpr float kUnit = 0x1p-31F;
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t at = size_t{blockIdx.x} * kThreads + threadIdx.x; at < count; at += stride) {
    const auto bits = static_cast<int32_t>(mix(at ^ seed) >> 32);
    data[at] = cuda::device::from_float<T>(mean + half_width * (static_cast<float>(bits) * kUnit));
  }
}

}  // namespace

void fill_uniform(cudaStream_t stream, DType dtype, void* data, size_t count, float mean,
                  float half_width, uint64_t seed) {
  if (count == 0) return;
  const auto blocks =
      static_cast<unsigned>(std::min(kMaxBlocks, (count + kThreads - 1) / kThreads));
  const uint64_t key = seed * 0xD1342543DE82EF95ULL;  // far apart for neighbouring seeds
  switch (dtype) {
    case DType::kF32:
      fill<<<blocks, kThreads, 0, stream>>>(static_cast<float*>(data), count, mean, half_width,
                                            key);
      break;
    case DType::kBF16:
      fill<<<blocks, kThreads, 0, stream>>>(static_cast<cuda::device::Bf16*>(data), count, mean,
                                            half_width, key);
      break;
    case DType::kF8E4M3:
      fill<<<blocks, kThreads, 0, stream>>>(static_cast<cuda::device::F8*>(data), count, mean,
                                            half_width, key);
      break;
    default: break;
  }
  cuda::check(cudaGetLastError());
}

}  // namespace tessera::bench
