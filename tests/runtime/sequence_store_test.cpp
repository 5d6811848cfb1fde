// SPDX-License-Identifier: Apache-2.0
// Sequences: every part of the state is cleared, forked, frozen, restored, saved and loaded;
// pages are shared until somebody writes.
#include "runtime/sequence_store.h"

#include <gtest/gtest.h>
#include <numeric>
#include <thread>

#include "runtime/state_fixture.h"

namespace tessera {
namespace {

using namespace state_fixture;

constexpr int kTokens = 70;  // one full page and an open one
constexpr uint64_t kFirst = 1;
constexpr uint64_t kSecond = 2;

std::vector<int32_t> counting(int count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  for (int32_t& id : ids) id %= kVocab;
  return ids;
}

class Store : public testing::Test {
 protected:
  StateLayout layout_ = tiny_layout();
  std::shared_ptr<PagePool> pool_ = make_pool(layout_, 12);
  SequenceStore store_{layout_, pool_, 3};

  SequenceId make_sequence(int tokens) {
    const SequenceId id = store_.create().value();
    append(id, tokens);
    return id;
  }
  void append(SequenceId id, int tokens) {
    const int64_t begin = store_.length(id);
    ASSERT_TRUE(store_.reserve(id, begin + tokens));
    ASSERT_TRUE(store_.prepare_write(id, begin));
    store_.commit(id, counting(tokens));
  }
  std::byte* region(SequenceId id, const StateEntry& entry, size_t offset, size_t page) {
    if (entry.rule != IndexRule::kPage) return store_.slot(id) + offset;
    return pool_->page(store_.span(id, 0, 0).pages[page]) + offset;
  }
  /// Writes all parts of the sequence, after the copies that writing demands.
  void stamp(SequenceId id, uint64_t value) {
    ASSERT_TRUE(store_.prepare_write(id, 0));
    for_each_part(layout_, [&](const StateEntry& entry, int layer, size_t offset) {
      for (size_t page = 0; page < pages_for(store_.length(id)); ++page)
        write_pattern(region(id, entry, offset, page), entry.layer_bytes(), entry.part, layer,
                      value);
    });
  }
  void expect_stamp(SequenceId id, uint64_t value) {
    for_each_part(layout_, [&](const StateEntry& entry, int layer, size_t offset) {
      for (size_t page = 0; page < pages_for(store_.length(id)); ++page)
        EXPECT_TRUE(has_pattern(region(id, entry, offset, page), entry.layer_bytes(), entry.part,
                                layer, value))
            << entry.name << " of layer " << layer << ", page " << page;
    });
  }
};

TEST_F(Store, NewSequenceIsZeroWhateverTheSlotHeldBefore) {
  const SequenceId used = make_sequence(kTokens);
  stamp(used, kFirst);
  store_.destroy(used);
  const SequenceId fresh = make_sequence(kTokens);
  EXPECT_EQ(fresh, used);
  for_each_part(layout_, [&](const StateEntry& entry, int layer, size_t offset) {
    for (const size_t page : {size_t{0}, size_t{1}})
      EXPECT_TRUE(is_zero(region(fresh, entry, offset, page), entry.layer_bytes()))
          << entry.name << " of layer " << layer;
  });
}

TEST_F(Store, ForkCopiesEveryPartAndThenLivesAlone) {
  const SequenceId source = make_sequence(kTokens);
  stamp(source, kFirst);
  const SequenceId copy = store_.fork(source).value();
  EXPECT_EQ(store_.tokens(copy), store_.tokens(source));
  expect_stamp(copy, kFirst);
  stamp(copy, kSecond);
  expect_stamp(source, kFirst);
  stamp(source, 3);
  expect_stamp(copy, kSecond);
  store_.destroy(source);
  expect_stamp(copy, kSecond);
}

TEST_F(Store, SnapshotFreezesEveryPart) {
  const SequenceId source = make_sequence(kTokens);
  stamp(source, kFirst);
  const auto snapshot = store_.snapshot(source);
  stamp(source, kSecond);
  append(source, 5);
  const SequenceId restored = store_.restore(*snapshot).value();
  EXPECT_EQ(store_.tokens(restored), counting(kTokens));
  expect_stamp(restored, kFirst);
  stamp(restored, 3);
  const SequenceId again = store_.restore(*snapshot).value();
  expect_stamp(again, kFirst);
  expect_stamp(source, kSecond);
}

TEST_F(Store, FileKeepsEveryPart) {
  const SequenceId source = make_sequence(kTokens);
  stamp(source, kFirst);
  const std::vector<std::byte> file = encode(*store_.snapshot(source), identity_of(layout_));
  store_.destroy(source);
  const auto loaded = decode_state(file, identity_of(layout_), pool_, "memory");
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  const SequenceId restored = store_.restore(**loaded).value();
  EXPECT_EQ(store_.tokens(restored), counting(kTokens));
  expect_stamp(restored, kFirst);
}

TEST_F(Store, OpenPageIsCopiedOnceBeforeEitherSideWrites) {
  const SequenceId source = make_sequence(kTokens);
  const SequenceId copy = store_.fork(source).value();
  EXPECT_EQ(pool_->used(), 2);
  ASSERT_TRUE(store_.prepare_write(copy, kTokens));
  EXPECT_EQ(pool_->used(), 3);
  const auto pages = [this](SequenceId id) { return store_.span(id, 0, 0).pages; };
  EXPECT_EQ(pages(copy)[0], pages(source)[0]);
  EXPECT_NE(pages(copy)[1], pages(source)[1]);
  ASSERT_TRUE(store_.prepare_write(source, kTokens));
  EXPECT_EQ(pool_->used(), 3);
}

TEST_F(Store, ForkLeavesUncommittedPagesBehind) {
  const SequenceId source = make_sequence(ops::kPageTokens);
  ASSERT_TRUE(store_.reserve(source, 2 * ops::kPageTokens));
  const auto snapshot = store_.snapshot(source);
  EXPECT_EQ(snapshot->pages().size(), 1U);
  const SequenceId copy = store_.fork(source).value();
  ASSERT_TRUE(store_.prepare_write(source, ops::kPageTokens));
  ASSERT_TRUE(store_.prepare_write(copy, ops::kPageTokens));
  EXPECT_EQ(pool_->used(), 2);
}

TEST_F(Store, EmptySequencesForkAndFreeze) {
  const SequenceId source = store_.create().value();
  const SequenceId copy = store_.fork(source).value();
  const auto snapshot = store_.snapshot(copy);
  EXPECT_TRUE(snapshot->tokens().empty());
  const SequenceId restored = store_.restore(*snapshot).value();
  EXPECT_EQ(store_.length(restored), 0);
  EXPECT_EQ(pool_->used(), 0);
}

TEST_F(Store, SpanPointsAtTheNextRows) {
  const SequenceId id = make_sequence(kTokens);
  ASSERT_TRUE(store_.reserve(id, kTokens + 4));
  const ops::RowSpan span = store_.span(id, 7, 4);
  EXPECT_EQ(span.row_begin, 7);
  EXPECT_EQ(span.num_rows, 4);
  EXPECT_EQ(span.position, kTokens);
  EXPECT_EQ(span.slot, store_.slot(id));
  EXPECT_EQ(span.pages[1], 1);
}

TEST_F(Store, ReserveTakesAllOrNothing) {
  const SequenceId id = make_sequence(1);
  const Result<void> reserved = store_.reserve(id, 13 * ops::kPageTokens);
  ASSERT_FALSE(reserved.has_value());
  EXPECT_EQ(reserved.error().code, Errc::kOutOfMemory);
  EXPECT_EQ(pool_->used(), 1);
  ASSERT_TRUE(store_.reserve(id, 12 * ops::kPageTokens));
  ASSERT_TRUE(store_.reserve(id, 1));
  EXPECT_EQ(pool_->used(), 12);
}

TEST_F(Store, SlotsRunOutWithAnError) {
  const SequenceId source = store_.create().value();
  const auto snapshot = store_.snapshot(source);
  ASSERT_TRUE(store_.create() && store_.create());
  EXPECT_EQ(store_.num_live(), store_.max_sequences());
  for (const Result<SequenceId>& none :
       {store_.create(), store_.fork(source), store_.restore(*snapshot)}) {
    ASSERT_FALSE(none.has_value());
    EXPECT_EQ(none.error().code, Errc::kOutOfMemory);
    EXPECT_EQ(none.error().found, "3");
  }
  store_.destroy(1);
  EXPECT_EQ(store_.restore(*snapshot).value(), 1);
}

TEST_F(Store, RefusesASnapshotOfAnotherPool) {
  const auto other_pool = make_pool(layout_, 2);
  SequenceStore other(layout_, other_pool, 1);
  const auto snapshot = other.snapshot(other.create().value());
  const Result<SequenceId> restored = store_.restore(*snapshot);
  ASSERT_FALSE(restored.has_value());
  EXPECT_EQ(restored.error().code, Errc::kMismatch);
  EXPECT_EQ(store_.num_live(), 0);
}

TEST(StoreLifetime, SnapshotOutlivesTheStoreAndMayDieOnAnotherThread) {
  const StateLayout layout = tiny_layout();
  const auto pool = make_pool(layout, 4);
  std::shared_ptr<const StateSnapshot> snapshot;
  {
    SequenceStore store(layout, pool, 1);
    const SequenceId id = store.create().value();
    ASSERT_TRUE(store.reserve(id, kTokens));
    store.commit(id, counting(kTokens));
    snapshot = store.snapshot(id);
  }
  EXPECT_EQ(pool->used(), 2);
  std::thread([&snapshot] { snapshot.reset(); }).join();
  EXPECT_EQ(pool->used(), 0);
}

TEST(StoreHistory, FortySequencesOnFourSlotsLeaveNothingBehind) {
  constexpr int kSequences = 40;
  const StateLayout layout = tiny_layout();
  const auto pool = make_pool(layout, 8);
  SequenceStore store(layout, pool, 4);
  for (int round = 0; round < kSequences; ++round) {
    const SequenceId id = store.create().value();
    ASSERT_TRUE(store.reserve(id, 1 + (round * 37) % 500)) << round;
    for_each_part(layout, [&](const StateEntry& entry, int layer, size_t offset) {
      std::byte* bytes = entry.rule == IndexRule::kPage
                             ? pool->page(store.span(id, 0, 0).pages[0]) + offset
                             : store.slot(id) + offset;
      EXPECT_TRUE(is_zero(bytes, entry.layer_bytes())) << entry.name << " in round " << round;
      write_pattern(bytes, entry.layer_bytes(), entry.part, layer, kFirst);
    });
    store.destroy(id);
  }
  EXPECT_EQ(pool->used(), 0);
}

}  // namespace
}  // namespace tessera
