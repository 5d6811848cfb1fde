// SPDX-License-Identifier: Apache-2.0
// Arithmetic of a row of the n-gram memory, shared by the decode and the prompt kernels. Rounding
// points: the gated value v, the convolution's input x, the delta and the residual; norms and gates
// stay in FP32.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/reduce.cuh"
#include "ops/ple.h"

namespace tessera::cuda::device {

/// Sums over the columns of a branch that decide its gate.
struct GateSums {
  float key = 0;    // k^2
  float query = 0;  // r^2
  float score = 0;  // k r (1 + norm_key) (1 + norm_query)

  __device__ __forceinline__ void add(float k, float r, float weight) {
    key = __fmaf_rn(k, k, key);
    query = __fmaf_rn(r, r, query);
    score = __fmaf_rn(__fmul_rn(k, r), weight, score);
  }
};

/// 1 / sqrt(mean + eps).
__device__ __forceinline__ float inverse_rms(float squares, int count, float eps) {
  return rsqrtf(__fmaf_rn(squares, 1.0F / static_cast<float>(count), eps));
}

/// sigmoid(sign(s) sqrt(max(|s|, 1e-6))); a NaN stays one.
__device__ __forceinline__ float gate_of(const GateSums& sums, int hidden, float eps) {
  constexpr float kFloor = 1e-6F;
  const float score = sums.score * inverse_rms(sums.key, hidden, eps) *
                      inverse_rms(sums.query, hidden, eps) * rsqrtf(static_cast<float>(hidden));
  if (score == 0.0F) return sigmoid(0.0F);
  const float size = fabsf(score) < kFloor ? kFloor : fabsf(score);
  return sigmoid(copysignf(sqrtf(size), score));
}

/// Value of the delta before its rounding.
__device__ __forceinline__ float delta_of(float gated, float convolved) {
  return gated + silu(convolved);
}

}  // namespace tessera::cuda::device
