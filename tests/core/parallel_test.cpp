// SPDX-License-Identifier: Apache-2.0
// Parallel loops: each index exactly once, shares at multiples of the grain, any number of threads.
#include "core/parallel.h"

#include <gtest/gtest.h>
#include <atomic>
#include <stdexcept>
#include <thread>
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

TEST(ParallelLoops, ManyShortLoopsLoseNothing) {
  set_num_threads(4);
  constexpr int kLoops = 20000;
  int64_t expected = 0;
  std::atomic<int64_t> sum{0};
  for (int loop = 0; loop < kLoops; ++loop) {
    const int64_t count = loop % 7;
    parallel_for_dynamic(count, 1, [&](int64_t begin, int64_t, int) { sum += begin + loop; });
    expected += count * (count - 1) / 2 + count * loop;
  }
  set_num_threads(0);
  EXPECT_EQ(sum, expected);
}

TEST(ParallelLoops, CallersOnSeveralThreadsShareThePool) {
  set_num_threads(3);
  constexpr int64_t kCount = 1000;
  std::atomic<int64_t> sum{0};
  const auto caller = [&] {
    for (int loop = 0; loop < 200; ++loop)
      parallel_for(kCount, 10, [&](int64_t begin, int64_t end, int) { sum += end - begin; });
  };
  std::thread first(caller), second(caller);
  first.join();
  second.join();
  set_num_threads(0);
  EXPECT_EQ(sum, 2 * 200 * kCount);
}

TEST(ParallelLoops, ALoopInsideALoopIsSerial) {
  set_num_threads(3);
  std::atomic<int> bad{0};
  std::atomic<int64_t> sum{0};
  parallel_for(8, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t outer = begin; outer < end; ++outer)
      parallel_for(100, 1, [&](int64_t first, int64_t last, int thread) {
        bad += thread != 0;
        sum += last - first;
      });
  });
  set_num_threads(0);
  EXPECT_EQ(bad, 0);
  EXPECT_EQ(sum, 800);
}

TEST(ParallelLoops, AnExceptionReachesTheCaller) {
  set_num_threads(3);
  const auto throwing = [] {
    parallel_for_dynamic(100, 1, [](int64_t begin, int64_t, int) {
      if (begin == 57) throw std::runtime_error("share 57");
    });
  };
  EXPECT_THROW(throwing(), std::runtime_error);
  std::atomic<int> visits{0};
  parallel_for_dynamic(100, 1, [&](int64_t, int64_t, int) { ++visits; });
  set_num_threads(0);
  EXPECT_EQ(visits, 100);
}

TEST(GrainFor, SmallWorkStaysOnOneThread) {
  EXPECT_GE(grain_for(1), 1000);
  EXPECT_EQ(grain_for(1e9), 1);
  EXPECT_GE(grain_for(0), 1);
}

}  // namespace
}  // namespace tessera
