// SPDX-License-Identifier: Apache-2.0
// How close is close: tolerances derived from norms and the rounding of a sum, and bit equality.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace tessera::test {

/// Relative error that a float sum of `terms` products may show against its absolute sum. Rounding
/// errors add like a random walk; the factors leave room for a few roundings around the sum.
inline double sum_tolerance(double terms) {
  constexpr double kSafety = 4, kRoundings = 4;
  return kSafety * double{std::numeric_limits<float>::epsilon()} * (std::sqrt(terms) + kRoundings);
}

inline double norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return std::sqrt(sum);
}

/// ||got - want|| <= relative * (||want|| + typical * sqrt(count)); `typical` is the size of the
/// terms behind one element, for results that may cancel to nothing. A NaN never passes.
inline testing::AssertionResult close(std::span<const float> got, std::span<const float> want,
                                      double relative, double typical = 0) {
  if (got.size() != want.size())
    return testing::AssertionFailure() << got.size() << " values, expected " << want.size();
  double error = 0, worst = -1;
  size_t worst_index = 0;
  for (size_t index = 0; index < want.size(); ++index) {
    const double difference = std::abs(double{got[index]} - double{want[index]});
    error += difference * difference;
    if (!(difference <= worst)) worst = difference, worst_index = index;
  }
  const double limit =
      relative * (norm(want) + typical * std::sqrt(static_cast<double>(want.size())));
  if (std::sqrt(error) <= limit) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "error norm " << std::sqrt(error) << " above " << limit << "; worst at " << worst_index
         << ": " << got[worst_index] << ", expected " << want[worst_index] << " of " << want.size();
}

inline testing::AssertionResult same_bits(std::span<const float> got, std::span<const float> want) {
  if (got.size() != want.size())
    return testing::AssertionFailure() << got.size() << " values, expected " << want.size();
  for (size_t index = 0; index < want.size(); ++index)
    if (std::bit_cast<uint32_t>(got[index]) != std::bit_cast<uint32_t>(want[index]))
      return testing::AssertionFailure() << "bits differ at " << index << " of " << want.size()
                                         << ": " << got[index] << " and " << want[index];
  return testing::AssertionSuccess();
}

}  // namespace tessera::test
