// SPDX-License-Identifier: Apache-2.0
// Folding of partial softmax sums. Every kernel folds with these few operations, so that the bits
// do not depend on where a partial sum was computed.
#pragma once

#include <cuda_runtime.h>

#include <limits>

namespace tessera::cuda::device {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Of one query over some tokens: largest logit (base-2 units) and sum of the weights relative to
/// it. No tokens: sum == 0 (else a sum is at least 1, or NaN).
struct Partial {
  float peak = -kInfinity;
  float sum = 0;

  __device__ bool empty() const { return sum == 0; }
};

struct FoldFactors {
  float keep;
  float add;
};

/// Adds the tokens of `other`, which must have some, to `total`.
__device__ __forceinline__ FoldFactors fold(Partial& total, const Partial& other) {
  const float peak = fmaxf(total.peak, other.peak);
  const FoldFactors factors{total.empty() ? 0.0F : exp2f(total.peak - peak),
                            total.empty() ? 1.0F : exp2f(other.peak - peak)};
  total.sum = __fmaf_rn(total.sum, factors.keep, __fmul_rn(other.sum, factors.add));
  total.peak = peak;
  return factors;
}

/// The same for a weighted sum of values.
__device__ __forceinline__ float fold_value(const FoldFactors& factors, float total, float other) {
  return __fmaf_rn(total, factors.keep, __fmul_rn(other, factors.add));
}

}  // namespace tessera::cuda::device
