// SPDX-License-Identifier: Apache-2.0
// Branch-free exponentials that compilers turn into vector code inside a SIMD loop.
#pragma once

#include <bit>
#include <cstdint>

namespace tessera::cpu {

/// e^x to about one unit in the last place; below the smallest normal result it is zero.
[[gnu::always_inline]] inline float vector_exp(float x) {
  constexpr float kLowest = -87.33654F;
  constexpr float kHighest = 88.722839F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRounder = 0x1.8p23F;  // adding it leaves the nearest integer in the low bits
  constexpr int kMantissaBits = 23;

  float clamped = x < kLowest ? kLowest : x;
  clamped = clamped > kHighest ? kHighest : clamped;
  const float shifted = clamped * kLog2E + kRounder;
  const float whole = shifted - kRounder;
  const float rest = (clamped - whole * kLn2High) - whole * kLn2Low;
  float series = 1.9875691500e-4F;
  series = series * rest + 1.3981999507e-3F;
  series = series * rest + 8.3334519073e-3F;
  series = series * rest + 4.1665795894e-2F;
  series = series * rest + 1.6666665459e-1F;
  series = series * rest + 5.0000001201e-1F;
  series = series * rest * rest + rest + 1.0F;
  // Two factors: 2^128 alone has no encoding although the product with a small series is finite.
  const uint32_t power = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRounder);
  const auto half = static_cast<uint32_t>(static_cast<int32_t>(power) >> 1);
  const uint32_t one = std::bit_cast<uint32_t>(1.0F);
  const float first = std::bit_cast<float>((half << kMantissaBits) + one);
  const float second = std::bit_cast<float>(((power - half) << kMantissaBits) + one);
  const float result = series * first * second;
  const float infinity = std::bit_cast<float>(0x7F800000U);
  const float bounded = x > kHighest ? infinity : result;
  return x < kLowest ? 0.0F : bounded;
}

[[gnu::always_inline]] inline float vector_sigmoid(float x) {
  return 1.0F / (1.0F + vector_exp(-x));
}

/// x * sigmoid(x) as one quotient: large negative x gives -0, never 0 * infinity.
[[gnu::always_inline]] inline float vector_silu(float x) { return x / (1.0F + vector_exp(-x)); }

}  // namespace tessera::cpu
