// SPDX-License-Identifier: Apache-2.0
// Random device data.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace tessera::bench {

/// `count` elements of kF32, kBF16 or kF8E4M3, uniform in mean -+ half_width.
void fill_uniform(cudaStream_t stream, DType dtype, void* data, size_t count, float mean,
                  float half_width, uint64_t seed);

}  // namespace tessera::bench
