// SPDX-License-Identifier: Apache-2.0
// Where a producer or a consumer stands in a ring of stages with barriers.
#pragma once

#include <cstdint>

namespace tessera::cuda::device {

/// Both sides walk the ring alike: a consumer waits for `phase` of the stage's full barrier, the
/// producer for `phase ^ 1` of its empty barrier.
template <int kStages>
struct RingCursor {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

}  // namespace tessera::cuda::device
