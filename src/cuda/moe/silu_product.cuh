// SPDX-License-Identifier: Apache-2.0
// What lies between the two products of an expert.
#pragma once

namespace tessera::cuda::device {

/// silu(gate) * up by the hardware's approximate division: its error is far below the BF16 rounding
/// that follows, and it needs no slow path, whose registers the product kernels do not have.
__device__ __forceinline__ float silu_product(float gate, float up) {
  return __fdividef(gate, 1.0F + __expf(-gate)) * up;
}

}  // namespace tessera::cuda::device
