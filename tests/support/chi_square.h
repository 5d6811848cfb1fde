// SPDX-License-Identifier: Apache-2.0
// Do counted draws follow a law? Pearson's chi-square with rare outcomes put together.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace tessera::test {

/// Takes the outcomes of a law one by one, then judges them.
class ChiSquare {
 public:
  /// An outcome that was expected so often and was found so often.
  void add(double expected, double found) {
    constexpr double kLeastExpected = 5.0;
    if (expected == 0) {
      EXPECT_EQ(found, 0);
    } else if (expected < kLeastExpected) {
      rare_expected_ += expected;
      rare_found_ += found;
    } else {
      add_bin(expected, found);
    }
  }

  /// Once, at the end.
  void judge() {
    constexpr double kScoreLimit = 3.719;  // p = 1e-4
    if (rare_expected_ > 0) add_bin(std::max(rare_expected_, 1.0), rare_found_);
    ASSERT_GE(bins_, 2);
    EXPECT_LT(normal_score(bins_ - 1), kScoreLimit)
        << "chi-square " << chi_square_ << " over " << bins_ << " bins";
  }

 private:
  void add_bin(double expected, double found) {
    chi_square_ += (found - expected) * (found - expected) / expected;
    ++bins_;
  }
  /// Standard normal score of the chi-square value (Wilson and Hilferty's cube root).
  double normal_score(int freedom) const {
    const double variance = 2.0 / (9.0 * freedom);
    return (std::cbrt(chi_square_ / freedom) - (1.0 - variance)) / std::sqrt(variance);
  }

  double chi_square_ = 0;
  int bins_ = 0;
  double rare_expected_ = 0;
  double rare_found_ = 0;
};

}  // namespace tessera::test
