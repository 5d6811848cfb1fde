// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 against the published known answers, and the uniform draw built on it.
#include "core/philox.h"

#include <gtest/gtest.h>
#include <cmath>
#include <set>

namespace tessera {
namespace {

constexpr uint64_t key_of(uint32_t low, uint32_t high) { return (uint64_t{high} << 32) | low; }

TEST(Philox, MatchesThePublishedVectors) {
  constexpr uint32_t kOnes = 0xFFFFFFFFU;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0),
            (PhiloxCounter{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, key_of(kOnes, kOnes)),
            (PhiloxCounter{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  EXPECT_EQ(philox4x32({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U},
                       key_of(0xa4093822U, 0x299f31d0U)),
            (PhiloxCounter{0xd16cfe09U, 0x94fdcceb, 0x5001e420U, 0x24126ea1U}));
}

TEST(Philox, UniformTakesTheTopBitsOfTheFirstTwoWords) {
  // 0x6627e8d5e169c58d >> 11 is the numerator over 2^53.
  EXPECT_EQ(philox_uniform(0, 0, DrawPurpose::kSample),
            static_cast<double>(0x6627e8d5e169c58dULL >> 11) / std::pow(2.0, 53));
}

TEST(Philox, UniformDependsOnEveryArgument) {
  constexpr uint64_t kFar = uint64_t{1} << 32;
  std::set<double> seen;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, kFar})
    for (const uint64_t position : {uint64_t{0}, uint64_t{1}, kFar})
      for (const DrawPurpose purpose : {DrawPurpose::kSample, DrawPurpose::kWeights})
        seen.insert(philox_uniform(seed, position, purpose));
  EXPECT_EQ(seen.size(), 18U);
}

TEST(Philox, UniformFillsTheUnitIntervalEvenly) {
  constexpr int kDraws = 100000;
  double sum = 0;
  double squares = 0;
  for (int position = 0; position < kDraws; ++position) {
    const double draw = philox_uniform(7, static_cast<uint64_t>(position), DrawPurpose::kSample);
    ASSERT_GE(draw, 0.0);
    ASSERT_LT(draw, 1.0);
    sum += draw;
    squares += draw * draw;
  }
  // Five standard deviations of the mean of a uniform variable and of its square.
  EXPECT_NEAR(sum / kDraws, 1.0 / 2, 5 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kDraws));
}

}  // namespace
}  // namespace tessera
