// SPDX-License-Identifier: Apache-2.0
// Angles of the rotary embedding, exact to FP32 at any position.
#pragma once

#include <cstdint>

namespace tessera::cuda::device {

inline constexpr int kAxes = 3;  // t, h, w

struct Angle {
  float cosine;
  float sine;
};

/// The product is exact in double (24 + 18 bits); whole turns are taken off before it becomes a
/// float, so the error does not grow with the position and no slow range reduction is needed.
__device__ __forceinline__ Angle rope_angle(float inv_freq, int32_t position, float scale) {
  constexpr double kTurnsPerRadian = 0.15915494309189533577;
  double turns = static_cast<double>(inv_freq) * position * kTurnsPerRadian;
  turns -= rint(turns);
  Angle angle;
  sincospif(2.0F * static_cast<float>(turns), &angle.sine, &angle.cosine);
  angle.cosine *= scale;
  angle.sine *= scale;
  return angle;
}

}  // namespace tessera::cuda::device
