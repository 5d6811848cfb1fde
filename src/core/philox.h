// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a
// counter-based generator, so a draw depends on (seed, position, purpose) and on nothing that
// happened before.
#pragma once

#include <array>
#include <cstdint>

namespace tessera {

using PhiloxCounter = std::array<uint32_t, 4>;

constexpr PhiloxCounter philox4x32(PhiloxCounter counter, uint64_t key) {
  constexpr uint32_t kMul0 = 0xD2511F53U, kMul1 = 0xCD9E8D57U;
  constexpr uint32_t kWeyl0 = 0x9E3779B9U, kWeyl1 = 0xBB67AE85U;
  constexpr int kRounds = 10;
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{kMul0} * counter[0];
    const uint64_t product1 = uint64_t{kMul1} * counter[2];
    counter = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

/// What a draw is for: draws of different purposes at one position are independent.
enum class DrawPurpose : uint32_t { kSample = 0, kWeights = 1 };

/// Uniform in [0, 1) with 53 bits, a pure function of its arguments.
constexpr double philox_uniform(uint64_t seed, uint64_t position, DrawPurpose purpose) {
  const PhiloxCounter bits =
      philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                  static_cast<uint32_t>(purpose), 0},
                 seed);
  const uint64_t mantissa = ((uint64_t{bits[0]} << 32) | bits[1]) >> 11;
  return static_cast<double>(mantissa) * 0x1p-53;
}

}  // namespace tessera
