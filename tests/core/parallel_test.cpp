// SPDX-License-Identifier: Apache-2.0
// Parallel loops: each index exactly once, shares at multiples of the grain, any number of threads.
#include "core/parallel.h"

#include <gtest/gtest.h>
#include <atomic>
#include <tuple>
#include <vector>

namespace tessera {
namespace {

class ParallelFor : public testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  void SetUp() override { set_num_threads(std::get<0>(GetParam())); }
  void TearDown() override { set_num_threads(0); }

  /// Runs a loop and checks what holds for both kinds of it.
  template <class Loop>
  void check(Loop&& loop) {
    const auto [threads, count, grain] = GetParam();
    std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
    std::atomic<int> bad_shares{0};
    const int64_t total = count;
    loop(total, int64_t{grain}, [&, most = threads](int64_t begin, int64_t end, int thread) {
      const bool inside = 0 <= begin && begin < end && end <= total;
      const bool on_grid = begin % grain == 0 && (end % grain == 0 || end == total);
      if (!inside || !on_grid || thread < 0 || thread >= most) ++bad_shares;
      for (int64_t index = begin; index < end; ++index) ++visits[static_cast<size_t>(index)];
    });
    EXPECT_EQ(bad_shares, 0);
    for (const std::atomic<int>& visit : visits) EXPECT_EQ(visit, 1);
  }
};

TEST_P(ParallelFor, StaticVisitsEachIndexOnce) {
  check([](int64_t count, int64_t grain, auto&& fn) { parallel_for(count, grain, fn); });
}

TEST_P(ParallelFor, DynamicVisitsEachIndexOnce) {
  check([](int64_t count, int64_t grain, auto&& fn) { parallel_for_dynamic(count, grain, fn); });
}

INSTANTIATE_TEST_SUITE_P(Splits, ParallelFor,
                         testing::Combine(testing::Values(1, 2, 3, 8),
                                          testing::Values(0, 1, 7, 64, 65, 1000),
                                          testing::Values(1, 3, 64, 2000)));

TEST(NumThreads, ZeroMeansAllCores) {
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  set_num_threads(0);
  EXPECT_GE(num_threads(), 1);
}

TEST(ParallelForShare, IsTheSameEveryTime) {
  set_num_threads(3);
  constexpr int64_t kCount = 100;
  std::vector<int> first(kCount), second(kCount);
  const auto record = [](std::vector<int>& owner) {
    parallel_for(kCount, 8, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t index = begin; index < end; ++index) owner[static_cast<size_t>(index)] = thread;
    });
  };
  record(first);
  record(second);
  set_num_threads(0);
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace tessera
