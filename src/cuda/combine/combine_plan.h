// SPDX-License-Identifier: Apache-2.0
// How a residual update is spread over blocks: one block per (row, branch), whose threads keep the
// branch in registers between the update and the norm when one vector per thread covers it.
#pragma once

#include <array>
#include <cstddef>

namespace tessera::cuda {

inline constexpr int kCombineVector = 8;  // BF16 values of 16 bytes

struct CombineTile {
  int threads;
  constexpr int covers() const { return threads * kCombineVector; }
};

/// Every block width that is instantiated, smallest first. 320 threads fit 2560 columns exactly.
inline constexpr std::array kCombineTiles = {
    CombineTile{.threads = 32},  CombineTile{.threads = 64},  CombineTile{.threads = 128},
    CombineTile{.threads = 320}, CombineTile{.threads = 512}, CombineTile{.threads = 1024}};

/// Index of the narrowest tile that holds a branch in registers; -1: the scalar kernel.
constexpr int plan_combine(int hidden) {
  if (hidden % kCombineVector != 0) return -1;
  for (int tile = 0; tile < static_cast<int>(kCombineTiles.size()); ++tile)
    if (hidden <= kCombineTiles[static_cast<size_t>(tile)].covers()) return tile;
  return -1;
}
static_assert(kCombineTiles[static_cast<size_t>(plan_combine(2560))].threads == 320);

}  // namespace tessera::cuda
