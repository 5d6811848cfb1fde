// SPDX-License-Identifier: Apache-2.0
// Scalar functions of the specification in double, shared by the reference ops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tessera::cpu::reference {

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }

/// log(1 + e^x) without overflow for large x.
inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

inline double dot(const float* left, const float* right, int count) {
  double sum = 0;
  for (int index = 0; index < count; ++index) sum += double{left[index]} * double{right[index]};
  return sum;
}

/// 1 / sqrt(mean(x^2) + eps).
inline double inverse_rms(const float* x, int count, double eps) {
  return 1.0 / std::sqrt(dot(x, x, count) / count + eps);
}

/// RMS1 of one group: x * inverse_rms * (1 + weight). `out` may alias `x`.
inline void rms_norm(const float* x, const float* weight, int count, double eps, float* out) {
  const double factor = inverse_rms(x, count, eps);
  for (int index = 0; index < count; ++index)
    out[index] = static_cast<float>(x[index] * factor * (1.0 + double{weight[index]}));
}

/// GRMS1: one mean per branch of a wide row.
inline void grouped_rms_norm(const float* x, const float* weight, int groups, int count, double eps,
                             float* out) {
  for (int group = 0; group < groups; ++group) {
    const ptrdiff_t start = ptrdiff_t{group} * count;
    rms_norm(x + start, weight + start, count, eps, out + start);
  }
}

}  // namespace tessera::cpu::reference
