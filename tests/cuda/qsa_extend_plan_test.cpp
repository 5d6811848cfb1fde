// SPDX-License-Identifier: Apache-2.0
// Which places of a list are looked at, and by how many threads.
#include "cuda/qsa_extend/qsa_extend_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::cuda {
namespace {

TEST(QsaExtendPlan, LooksAtTheListAndAtOnePlaceBehindIt) {
  EXPECT_EQ(extend_columns(510, 512), 511);
  EXPECT_EQ(extend_columns(511, 512), 512);
  EXPECT_EQ(extend_columns(512, 512), 512);  // in place
}

TEST(QsaExtendPlan, HasAThreadForEachPlaceUpToAWholeBlock) {
  constexpr int kWarp = 32;
  for (int columns = 1; columns <= 2 * kExtendMaxThreads; ++columns) {
    const int threads = extend_threads(columns);
    EXPECT_EQ(threads % kWarp, 0);
    EXPECT_LE(threads, kExtendMaxThreads);
    EXPECT_GE(threads, std::min(columns, kExtendMaxThreads));
    EXPECT_LT(threads - kWarp, columns);
  }
}

}  // namespace
}  // namespace tessera::cuda
