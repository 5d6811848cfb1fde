// SPDX-License-Identifier: Apache-2.0
// The page pool: order of ids, references, zeroed reuse, memory given back, exhaustion, threads.
#include "runtime/page_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <algorithm>
#include <cstring>
#include <thread>

namespace tessera {
namespace {

using Ids = std::vector<int32_t>;

std::shared_ptr<PagePool> make(size_t page_bytes, int32_t capacity) {
  return PagePool::make(page_bytes, capacity).value();
}

TEST(PagePool, HandsOutTheLowestIdsFirst) {
  const auto pool = make(100, 8);
  EXPECT_EQ(pool->allocate(4).value(), (Ids{0, 1, 2, 3}));
  pool->release(Ids{2});
  pool->release(Ids{0});
  EXPECT_EQ(pool->allocate(3).value(), (Ids{0, 2, 4}));
  EXPECT_EQ(pool->used(), 5);
}

TEST(PagePool, AllocatesNothing) {
  const auto pool = make(64, 1);
  EXPECT_EQ(pool->allocate(0).value(), Ids{});
  EXPECT_EQ(pool->used(), 0);
}

TEST(PagePool, ExhaustionIsAnErrorWithNumbersAndTakesNothing) {
  const auto pool = make(64, 3);
  ASSERT_TRUE(pool->allocate(1).has_value());
  const Result<Ids> more = pool->allocate(3);
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().code, Errc::kOutOfMemory);
  EXPECT_EQ(more.error().expected, "3 pages");
  EXPECT_EQ(more.error().found, "2 free of 3");
  EXPECT_EQ(pool->used(), 1);
  EXPECT_EQ(pool->allocate(2).value(), (Ids{1, 2}));
}

TEST(PagePool, PageLivesUntilItsLastReference) {
  const auto pool = make(64, 2);
  const Ids ids = pool->allocate(1).value();
  pool->add_ref(ids);
  EXPECT_EQ(pool->ref_count(0), 2);
  pool->release(ids);
  EXPECT_EQ(pool->used(), 1);
  pool->release(ids);
  EXPECT_EQ(pool->used(), 0);
  EXPECT_EQ(pool->ref_count(0), 0);
  EXPECT_EQ(pool->ref_count(1), 0);
}

class PagePoolSize : public testing::TestWithParam<size_t> {};

TEST_P(PagePoolSize, ReusedPagesAreZero) {
  constexpr int32_t kPages = 2;
  const size_t bytes = GetParam();
  const auto pool = make(bytes, kPages);
  for (int round = 0; round < 3; ++round) {
    const Ids ids = pool->allocate(kPages).value();
    for (const int32_t id : ids) {
      const std::byte* page = pool->page(id);
      EXPECT_EQ(page, pool->base() + static_cast<size_t>(id) * bytes);
      EXPECT_TRUE(std::all_of(page, page + bytes, [](std::byte b) { return b == std::byte{0}; }))
          << "round " << round << " page " << id;
      std::memset(pool->page(id), 0xA5, bytes);
    }
    pool->release(ids);
  }
}

TEST_P(PagePoolSize, FreeingOnePageLeavesItsNeighboursAlone) {
  const size_t bytes = GetParam();
  const auto pool = make(bytes, 3);
  const Ids ids = pool->allocate(3).value();
  for (const int32_t id : ids) std::memset(pool->page(id), 0x5A, bytes);
  pool->release(Ids{1});
  for (const int32_t id : {0, 2}) {
    const std::byte* page = pool->page(id);
    EXPECT_TRUE(std::all_of(page, page + bytes, [](std::byte b) { return b == std::byte{0x5A}; }));
  }
}

// The last two are above what free pages may keep, so their memory goes back to the system.
INSTANTIATE_TEST_SUITE_P(Bytes, PagePoolSize,
                         testing::Values(1, 64, 4095, 4096, 4097, 100000, (size_t{64} << 20) + 4160,
                                         (size_t{65} << 20)));

TEST(PagePool, GivesTheMemoryOfManyFreePagesBack) {
  constexpr size_t kPageBytes = size_t{16} << 20;
  constexpr int32_t kPages = 6;
  const auto pool = make(kPageBytes, kPages);
  const Ids ids = pool->allocate(kPages).value();
  const auto resident = [&pool](int32_t id) {
    unsigned char in_memory = 0;
    EXPECT_EQ(mincore(pool->page(id), 1, &in_memory), 0);
    return (in_memory & 1U) != 0;
  };
  for (const int32_t id : ids) *pool->page(id) = std::byte{1};
  for (const int32_t id : ids) EXPECT_TRUE(resident(id));
  pool->release(ids);
  // Four pages are as much as free pages may keep.
  for (const int32_t id : ids) EXPECT_EQ(resident(id), id < 4) << id;
}

TEST(PagePool, ReservesFarMoreThanMemory) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer's memory map has no room for 4 TiB";
#endif
  constexpr size_t kPageBytes = size_t{1} << 20;
  constexpr int32_t kPages = 1 << 22;
  const auto pool = make(kPageBytes, kPages);
  EXPECT_EQ(pool->allocate(1).value(), Ids{0});
  EXPECT_EQ(pool->page(kPages - 1) - pool->base(),
            static_cast<std::ptrdiff_t>(kPageBytes * (size_t{kPages} - 1)));
}

TEST(PagePool, RefusesImpossibleSizes) {
  for (const auto& [bytes, pages] :
       {std::pair<size_t, int32_t>{0, 1}, {64, 0}, {64, -1}, {size_t{1} << 62, 8}}) {
    const auto pool = PagePool::make(bytes, pages);
    ASSERT_FALSE(pool.has_value());
    EXPECT_EQ(pool.error().code, Errc::kInvalidArgument);
  }
  const auto huge = PagePool::make(size_t{1} << 60, 4);
  ASSERT_FALSE(huge.has_value());
  EXPECT_EQ(huge.error().code, Errc::kOutOfMemory);
}

TEST(PagePool, ThreadsMayShareIt) {
  constexpr int kRounds = 2000;
  const auto pool = make(64, 64);
  const auto work = [&pool] {
    for (int round = 0; round < kRounds; ++round) {
      PageList pages(pool);
      if (!pages.grow_to(static_cast<size_t>(round % 7))) continue;
      const PageList second = pages.share(pages.size());
      pages.clear();
    }
  };
  std::thread first(work), second(work);
  first.join();
  second.join();
  EXPECT_EQ(pool->used(), 0);
}

TEST(PageList, CopiesOnlySharedPagesFromTheFirstOneWritten) {
  const auto pool = make(64, 8);
  PageList mine(pool);
  ASSERT_TRUE(mine.grow_to(3));
  const PageList other = mine.share(3);
  int copies = 0;
  ASSERT_TRUE(mine.make_private(1, [&](const std::byte* from, std::byte* to) {
    EXPECT_NE(from, to);
    ++copies;
  }));
  EXPECT_EQ(copies, 2);
  EXPECT_EQ(Ids(mine.ids().begin(), mine.ids().end()), (Ids{0, 3, 4}));
  EXPECT_EQ(Ids(other.ids().begin(), other.ids().end()), (Ids{0, 1, 2}));
  ASSERT_TRUE(mine.make_private(1, [&](const std::byte*, std::byte*) { ++copies; }));
  EXPECT_EQ(copies, 2);
}

TEST(PageList, KeepsItsPagesWhenACopyDoesNotFit) {
  const auto pool = make(64, 3);
  PageList mine(pool);
  ASSERT_TRUE(mine.grow_to(2));
  const PageList other = mine.share(2);
  const auto no_copy = [](const std::byte*, std::byte*) { FAIL() << "copied"; };
  const Result<void> done = mine.make_private(0, no_copy);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, Errc::kOutOfMemory);
  EXPECT_EQ(Ids(mine.ids().begin(), mine.ids().end()), (Ids{0, 1}));
  EXPECT_EQ(pool->used(), 2);
  EXPECT_FALSE(mine.grow_to(4).has_value());
  EXPECT_EQ(mine.size(), 2U);
}

TEST(PageList, MovesItsReferences) {
  const auto pool = make(64, 4);
  PageList first(pool);
  ASSERT_TRUE(first.grow_to(2));
  PageList second(pool);
  ASSERT_TRUE(second.grow_to(1));
  second = std::move(first);
  EXPECT_EQ(pool->used(), 2);
  {
    const PageList third(std::move(second));
  }
  EXPECT_EQ(pool->used(), 0);
}

}  // namespace
}  // namespace tessera
