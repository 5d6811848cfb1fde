// SPDX-License-Identifier: Apache-2.0
// Activations of the CPU backends are FP32.
#pragma once

namespace tessera::cpu {

inline const float* floats(const void* activations) {
  return static_cast<const float*>(activations);
}
inline float* floats(void* activations) { return static_cast<float*>(activations); }

}  // namespace tessera::cpu
