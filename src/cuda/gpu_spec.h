// SPDX-License-Identifier: Apache-2.0
// What a plan may know about the device: plain numbers, so that plans are tested without one.
#pragma once

#include <cstddef>

namespace tessera::cuda {

struct GpuSpec {
  int compute_major = 0;
  int compute_minor = 0;
  int num_sms = 0;
  size_t shared_bytes_per_block = 0;  // with opt-in
  size_t l2_bytes = 0;

  constexpr bool is_hopper() const { return compute_major == 9; }
};

/// H200 as seen by cudaGetDeviceProperties: what plan tests use.
inline constexpr GpuSpec kH200{.compute_major = 9,
                               .compute_minor = 0,
                               .num_sms = 132,
                               .shared_bytes_per_block = 232448,
                               .l2_bytes = size_t{60} << 20};

}  // namespace tessera::cuda
