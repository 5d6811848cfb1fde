// SPDX-License-Identifier: Apache-2.0
// How lists that go on from earlier ones are spread over threads: plain numbers, tested without a
// device.
#pragma once

#include <algorithm>

namespace tessera::cuda {

inline constexpr int kExtendMaxThreads = 1024;
/// Rows whose loads are under way together.
inline constexpr int kExtendRows = 8;

/// Entries that a list may have: those of an earlier one and a block of its own.
constexpr int extend_columns(int from_stride, int stride) {
  return std::min(stride, from_stride + 1);
}

/// Of the one thread block: one for each column where it can have so many, whole warps.
constexpr int extend_threads(int columns) {
  constexpr int kWarp = 32;
  return std::clamp((columns + kWarp - 1) / kWarp * kWarp, kWarp, kExtendMaxThreads);
}
static_assert(extend_threads(512) == 512 && extend_threads(513) == 544);

}  // namespace tessera::cuda
