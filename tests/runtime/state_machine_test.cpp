// SPDX-License-Identifier: Apache-2.0
// Random histories of the sequence store against a model that only remembers token lists.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <map>
#include <optional>

#include "runtime/state_fixture.h"

namespace tessera {
namespace {

using namespace state_fixture;

constexpr int kSlots = 4;
constexpr int32_t kPages = 14;
constexpr int kMaxAppend = 100;

enum class Action { kCreate, kDestroy, kAppend, kFork, kFreeze, kDrop, kRestore, kReload, kCount };

struct Step {
  Action action = Action::kCreate;
  int pick = 0;    // which sequence or snapshot
  int amount = 0;  // tokens to append
  int drafts = 0;  // rejected rows written behind them
};

void showValue(const Step& step, std::ostream& out) {
  out << "{action " << static_cast<int>(step.action) << ", pick " << step.pick << ", amount "
      << step.amount << ", drafts " << step.drafts << "}";
}

rc::Gen<Step> any_step() {
  return rc::gen::build<Step>(
      rc::gen::set(&Step::action,
                   rc::gen::map(rc::gen::inRange(0, static_cast<int>(Action::kCount)),
                                [](int action) { return static_cast<Action>(action); })),
      rc::gen::set(&Step::pick, rc::gen::inRange(0, kSlots)),
      rc::gen::set(&Step::amount, rc::gen::inRange(0, kMaxAppend)),
      rc::gen::set(&Step::drafts, rc::gen::inRange(0, kOptions.max_draft + 1)));
}

/// What a token at a position leaves in the state.
uint64_t stamp_of(int32_t token, int64_t position) {
  return static_cast<uint64_t>(position) * kVocab + static_cast<uint64_t>(token) + 1;
}

class World {
 public:
  void run(const Step& step) {
    switch (step.action) {
      case Action::kCreate: return create();
      case Action::kDestroy: return destroy(step);
      case Action::kAppend: return append(step);
      case Action::kFork: return fork(step);
      case Action::kFreeze: return freeze(step);
      case Action::kDrop: return drop(step);
      case Action::kRestore: return restore(step);
      case Action::kReload: return reload(step);
      case Action::kCount: return;
    }
  }

  void check() const {
    RC_ASSERT(store_.num_live() == static_cast<int>(live_.size()));
    for (const auto& [id, tokens] : live_) check_sequence(id, tokens);
  }

  void finish() {
    for (const auto& [id, tokens] : live_) store_.destroy(id);
    live_.clear();
    frozen_.clear();
    RC_ASSERT(pool_->used() == 0);
    RC_ASSERT(store_.num_live() == 0);
  }

 private:
  struct Frozen {
    std::shared_ptr<const StateSnapshot> snapshot;
    std::vector<int32_t> tokens;
  };

  /// Iterator to a live sequence or a snapshot, end() when there is none.
  template <class Container>
  static auto pick(Container& from, int index) {
    if (from.empty()) return from.end();
    return std::next(from.begin(), index % static_cast<int>(from.size()));
  }

  void adopt(const Result<SequenceId>& id, const std::vector<int32_t>& tokens) {
    const bool full = live_.size() == kSlots;
    RC_ASSERT(id.has_value() != full);
    if (id) RC_ASSERT(live_.emplace(*id, tokens).second);
  }

  void create() { adopt(store_.create(), {}); }
  void destroy(const Step& step) {
    const auto found = pick(live_, step.pick);
    if (found == live_.end()) return;
    store_.destroy(found->first);
    live_.erase(found);
  }
  void append(const Step& step);
  void fork(const Step& step) {
    const auto found = pick(live_, step.pick);
    if (found != live_.end()) adopt(store_.fork(found->first), found->second);
  }
  void freeze(const Step& step) {
    const auto found = pick(live_, step.pick);
    if (found != live_.end() && frozen_.size() < kSlots)
      frozen_.push_back({store_.snapshot(found->first), found->second});
  }
  void drop(const Step& step) {
    const auto found = pick(frozen_, step.pick);
    if (found != frozen_.end()) frozen_.erase(found);
  }
  void restore(const Step& step) {
    const auto found = pick(frozen_, step.pick);
    if (found != frozen_.end()) adopt(store_.restore(*found->snapshot), found->tokens);
  }
  /// Through a file and back, in place of the snapshot.
  void reload(const Step& step) {
    const auto found = pick(frozen_, step.pick);
    if (found == frozen_.end()) return;
    const auto file = encode(*found->snapshot, identity_of(layout_));
    const auto loaded = decode_state(file, identity_of(layout_), pool_, "memory");
    if (loaded)
      found->snapshot = *loaded;
    else
      RC_ASSERT(loaded.error().code == Errc::kOutOfMemory);
  }

  void write_row(SequenceId id, int32_t token, int64_t position);
  void check_sequence(SequenceId id, const std::vector<int32_t>& tokens) const;

  const StateLayout layout_ = tiny_layout();
  const std::shared_ptr<PagePool> pool_ = make_pool(layout_, kPages);
  SequenceStore store_{layout_, pool_, kSlots};
  std::map<SequenceId, std::vector<int32_t>> live_{};
  std::vector<Frozen> frozen_{};
};

/// A token's share of a page region.
std::byte* page_share(std::byte* region, const StateEntry& entry, int64_t position) {
  const size_t share = entry.entry_bytes / ops::kPageTokens;
  return region + static_cast<size_t>(position % ops::kPageTokens) * share;
}

void World::write_row(SequenceId id, int32_t token, int64_t position) {
  const ops::RowSpan span = store_.span(id, 0, 0);
  const uint64_t stamp = stamp_of(token, position);
  for_each_part(layout_, [&](const StateEntry& entry, int layer, size_t offset) {
    if (entry.rule == IndexRule::kPage) {
      std::byte* region = pool_->page(span.pages[position / ops::kPageTokens]) + offset;
      write_pattern(page_share(region, entry, position), entry.entry_bytes / ops::kPageTokens,
                    entry.part, layer, stamp);
    } else if (entry.rule == IndexRule::kRing) {
      write_pattern(layout_.ring(entry.part, layer).entry(span.slot, position), entry.entry_bytes,
                    entry.part, layer, stamp);
    }
  });
}

void World::append(const Step& step) {
  const auto found = pick(live_, step.pick);
  if (found == live_.end()) return;
  auto& [id, tokens] = *found;
  const auto begin = static_cast<int64_t>(tokens.size());
  const int32_t used_before = pool_->used();
  const Result<void> reserved = store_.reserve(id, begin + step.amount + step.drafts);
  if (!reserved) RC_ASSERT(pool_->used() == used_before);
  const Result<void> ready = reserved ? store_.prepare_write(id, begin) : reserved;
  if (!ready) {
    RC_ASSERT(ready.error().code == Errc::kOutOfMemory);
    return;
  }
  std::vector<int32_t> fresh;
  for (int row = 0; row < step.amount + step.drafts; ++row) {
    const int32_t token = (step.pick * 17 + step.amount * 5 + row * 3) % kVocab;
    write_row(id, token, begin + row);
    if (row < step.amount) fresh.push_back(token);
  }
  store_.commit(id, fresh);
  tokens.insert(tokens.end(), fresh.begin(), fresh.end());
  if (fresh.empty()) return;
  // Values that are replaced as a whole describe the last token.
  const uint64_t stamp = stamp_of(tokens.back(), static_cast<int64_t>(tokens.size()));
  for_each_part(layout_, [&, owner = id](const StateEntry& entry, int layer, size_t offset) {
    if (entry.rule == IndexRule::kSingle)
      write_pattern(store_.slot(owner) + offset, entry.entry_bytes, entry.part, layer, stamp);
  });
}

void World::check_sequence(SequenceId id, const std::vector<int32_t>& tokens) const {
  RC_ASSERT(store_.tokens(id) == tokens);
  const ops::RowSpan span = store_.span(id, 0, 0);
  const auto length = static_cast<int64_t>(tokens.size());
  RC_ASSERT(span.position == length);
  for_each_part(layout_, [&](const StateEntry& entry, int layer, size_t offset) {
    const auto holds = [&](const std::byte* bytes, size_t count, int64_t position) {
      const int32_t token = tokens[static_cast<size_t>(position)];
      return has_pattern(bytes, count, entry.part, layer, stamp_of(token, position));
    };
    if (entry.rule == IndexRule::kPage) {
      for (int64_t position = 0; position < length; ++position) {
        std::byte* region = pool_->page(span.pages[position / ops::kPageTokens]) + offset;
        RC_ASSERT(holds(page_share(region, entry, position), entry.entry_bytes / ops::kPageTokens,
                        position));
      }
    } else if (entry.rule == IndexRule::kRing) {
      const ops::RingRef ring = layout_.ring(entry.part, layer);
      for (int64_t position = std::max<int64_t>(length - entry.reach, 0); position < length;
           ++position)
        RC_ASSERT(holds(ring.entry(span.slot, position), entry.entry_bytes, position));
    } else if (length == 0) {
      RC_ASSERT(is_zero(span.slot + offset, entry.entry_bytes));
    } else {
      RC_ASSERT(has_pattern(span.slot + offset, entry.entry_bytes, entry.part, layer,
                            stamp_of(tokens.back(), length)));
    }
  });
}

TEST(StateMachine, AnyHistoryMatchesTheModelAndLeaksNothing) {
  EXPECT_TRUE(rc::check([] {
    const auto steps = *rc::gen::container<std::vector<Step>>(any_step());
    World world;
    for (const Step& step : steps) {
      world.run(step);
      world.check();
    }
    world.finish();
  }));
}

}  // namespace
}  // namespace tessera
