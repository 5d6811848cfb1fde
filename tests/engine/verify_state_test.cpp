// SPDX-License-Identifier: Apache-2.0
// What a verify launch leaves behind: for every accepted length at every phase of the position, the
// state that plain decoding leaves, bit for bit; and the draft layer after a resumed state.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/engine/host_state.h"
#include "tests/engine/model_harness.h"
#include "tests/engine/setups.h"

namespace tessera::test {
namespace {

constexpr size_t kPhases = 64;  // of blocks of 4, rings of 8 and 16, pages and chunks of 64
constexpr int kMaxDraft = 5;

std::vector<std::byte> live_state(LoadedModel& model, SequenceId id) {
  return HostState(model, id).trunk();
}

class VerifyStateTest : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_skipped(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
    auto model = LoadedModel::load(options_of(GetParam()));
    ASSERT_TRUE(model) << model.error().message();
    model_ = std::move(*model);
    ASSERT_TRUE(model_->has_draft());
    ids_ = sample_ids(*model_, 64 + kPhases + 64, 11);
    vocab_ = static_cast<size_t>(model_->config().vocab_size);
  }

  /// One round from the end of the sequence: the next text ids as far as they are accepted, others
  /// behind them. Returns the logits of the accepted rows.
  std::vector<float> round(SequenceId id, int drafts, int accepted) {
    const auto length = static_cast<size_t>(model_->store().length(id));
    std::vector<int32_t> rows(ids_.begin() + static_cast<ptrdiff_t>(length),
                              ids_.begin() + static_cast<ptrdiff_t>(length) + drafts + 1);
    for (size_t row = static_cast<size_t>(accepted); row < rows.size(); ++row)
      rows[row] = static_cast<int32_t>((rows[row] + 101) % (static_cast<int32_t>(vocab_) - 1));
    const SequenceRows work{.sequence = id, .ids = rows};
    std::vector<int32_t> logit_rows;
    for (int row = 0; row < accepted; ++row) logit_rows.push_back(row);
    EXPECT_TRUE(model_->verify({&work, 1}, logit_rows));
    std::vector<float> logits(logit_rows.size() * vocab_);
    model_->logits(0, accepted, logits.data());
    model_->accept(work, 0, accepted);
    return logits;
  }

  std::unique_ptr<LoadedModel> model_;
  std::vector<int32_t> ids_;
  size_t vocab_ = 0;
};

TEST_P(VerifyStateTest, EveryAcceptedLengthAtEveryPhaseLeavesThePlainState) {
  constexpr size_t kFirst = 64;
  const std::span<const int32_t> ids(ids_);
  const ScopedSequence start = open_sequence(*model_);
  ASSERT_TRUE(model_->prefill(start.id(), ids.first(kFirst)));
  const auto fork_of = [&](SequenceId id) {
    model_->settle(id);
    return ScopedSequence(model_->store(), model_->store().fork(id).value());
  };
  // Plain decoding, one row a launch: its state after every length.
  std::vector<std::vector<std::byte>> states;
  std::vector<std::vector<float>> logits;
  const ScopedSequence plain = fork_of(start.id());
  for (size_t at = kFirst; at < kFirst + kPhases + 8; ++at) {
    states.push_back(live_state(*model_, plain.id()));
    logits.push_back(run_chunks(*model_, plain.id(), ids.subspan(at, 1), 1, ops::Role::kDecode));
  }
  // Rounds of every accepted length from every phase, each followed by one that replays them.
  const ScopedSequence walker = fork_of(start.id());
  for (size_t phase = 0; phase + kMaxDraft + 2 < kPhases + 8; ++phase) {
    for (int accepted = 1; accepted <= kMaxDraft + 1; ++accepted) {
      const ScopedSequence sequence = fork_of(walker.id());
      const std::vector<float> got = round(sequence.id(), kMaxDraft, accepted);
      for (int row = 0; row < accepted; ++row) {
        const auto& want = logits[phase + static_cast<size_t>(row)];
        ASSERT_TRUE(
            std::equal(want.begin(), want.end(),
                       got.begin() + static_cast<ptrdiff_t>(row) * static_cast<ptrdiff_t>(vocab_)))
            << "phase " << phase << " row " << row;
      }
      const size_t reached = phase + static_cast<size_t>(accepted);
      const ScopedSequence again = fork_of(sequence.id());
      ASSERT_EQ(live_state(*model_, again.id()), states[reached])
          << "phase " << phase << " accepted " << accepted;
      EXPECT_EQ(round(sequence.id(), 0, 1), logits[reached]);
      ASSERT_EQ(live_state(*model_, sequence.id()), states[reached + 1]);
    }
    ASSERT_EQ(round(walker.id(), 0, 1), logits[phase]);
  }
}

/// Rounds in a row without a flush between them, lengths mixed; then a plain launch.
TEST_P(VerifyStateTest, RoundsInARowReplayEachOther) {
  const std::span<const int32_t> ids(ids_);
  const ScopedSequence plain = open_sequence(*model_), drafted = open_sequence(*model_);
  for (const ScopedSequence* each : {&plain, &drafted})
    ASSERT_TRUE(model_->prefill(each->id(), ids.first(61)));
  size_t at = 61;
  for (const int accepted : {1, 6, 3, 2, 1, 5, 4, 6, 6, 1, 1, 2, 3}) {
    const std::vector<float> got = round(drafted.id(), kMaxDraft, accepted);
    const auto count = static_cast<size_t>(accepted);
    EXPECT_EQ(got, run_chunks(*model_, plain.id(), ids.subspan(at, count), 1, ops::Role::kDecode));
    at += count;
  }
  EXPECT_EQ(run_chunks(*model_, drafted.id(), ids.subspan(at, 3), 1, ops::Role::kDecode),
            run_chunks(*model_, plain.id(), ids.subspan(at, 3), 1, ops::Role::kDecode));
  EXPECT_EQ(live_state(*model_, drafted.id()), live_state(*model_, plain.id()));
}

/// History [14542, 11], verified 321 with the draft 16908, which is rejected: the history of the
/// n-gram memory is [11, 321] then (ids taken modulo the small vocabulary).
TEST_P(VerifyStateTest, ARejectedDraftLeavesNoTraceInTheTokenHistory) {
  const auto id = [&](int32_t value) { return value % static_cast<int32_t>(vocab_ - 2); };
  const std::vector<int32_t> history{id(14542), id(11)};
  const std::vector<int32_t> rows{id(321), id(16908)};
  const ScopedSequence sequence = open_sequence(*model_);
  ASSERT_TRUE(model_->prefill(sequence.id(), history));
  const SequenceRows work{.sequence = sequence.id(), .ids = rows};
  ASSERT_TRUE(model_->verify({&work, 1}, {}));
  model_->accept(work, 0, 1);
  HostState state(*model_, sequence.id());
  for (const auto& [position, token] : {std::pair{int64_t{1}, id(11)}, {int64_t{2}, id(321)}}) {
    int64_t stored = 0;
    std::memcpy(&stored, state.ring_entry(StatePart::kTokenIds, 0, position), sizeof stored);
    EXPECT_EQ(stored, token) << position;
  }
  // What follows sees [11, 321].
  const ScopedSequence plain = open_sequence(*model_);
  ASSERT_TRUE(model_->prefill(plain.id(), history));
  run_chunks(*model_, plain.id(), std::span(rows).first(1), 1, ops::Role::kDecode);
  const std::vector<int32_t> next{id(9999)};
  EXPECT_EQ(run_chunks(*model_, sequence.id(), next, 1, ops::Role::kDecode),
            run_chunks(*model_, plain.id(), next, 1, ops::Role::kDecode));
}

std::vector<std::byte> draft_state(LoadedModel& model, SequenceId id, int64_t rows) {
  return HostState(model, id).draft_layer(rows);
}

/// A state whose draft layer expected another token: the row is made again from the stored wide
/// row, and then everything equals a cold run.
TEST_P(VerifyStateTest, TheLaggingRowIsMadeAgainAfterAResume) {
  const std::span<const int32_t> ids(ids_);
  const auto read = [&](SequenceId sequence, size_t begin, size_t end) {
    const SequenceRows rows{.sequence = sequence, .ids = ids.subspan(begin, end - begin)};
    ASSERT_TRUE(model_->run({&rows, 1}, ops::Role::kPrefill, {}));
    const DraftRows drafts{.sequence = sequence,
                           .position = static_cast<int64_t>(begin),
                           .next_ids = ids.subspan(begin + 1, end - begin)};
    ASSERT_TRUE(model_->draft({&drafts, 1}, {.role = ops::Role::kPrefill, .cache_only = true}));
  };
  constexpr size_t kEnd = 150;
  const ScopedSequence cold = open_sequence(*model_);
  read(cold.id(), 0, 128);
  read(cold.id(), 128, kEnd);
  for (const size_t cut : {64, 128}) {  // on the grid of chunks, so that the trunk's bits agree too
    const ScopedSequence opening = open_sequence(*model_);
    read(opening.id(), 0, cut);
    // The row that lags, made with the token that was drawn instead of the one that comes.
    const std::vector<int32_t> drawn{(ids_[cut] + 1) % 400};
    const DraftRows wrong{.sequence = opening.id(),
                          .position = static_cast<int64_t>(cut) - 1,
                          .next_ids = drawn,
                          .first_source = static_cast<int>(cut) - 1};
    ASSERT_TRUE(model_->draft({&wrong, 1}, {.cache_only = true}));
    const ScopedSequence resumed(model_->store(),
                                 model_->store().restore(*model_->snapshot(opening.id())).value());
    const DraftRows again{.sequence = resumed.id(),
                          .position = static_cast<int64_t>(cut) - 1,
                          .next_ids = ids.subspan(cut, 1)};
    ASSERT_TRUE(model_->draft(
        {&again, 1},
        {.role = ops::Role::kPrefill, .source = DraftSource::kSlot, .cache_only = true}));
    if (cut < 128) read(resumed.id(), cut, 128);
    read(resumed.id(), 128, kEnd);
    EXPECT_EQ(draft_state(*model_, resumed.id(), kEnd), draft_state(*model_, cold.id(), kEnd))
        << cut;
    // The state it came from still has the row it was made with.
    EXPECT_NE(draft_state(*model_, opening.id(), static_cast<int64_t>(cut)),
              draft_state(*model_, cold.id(), static_cast<int64_t>(cut)));
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, VerifyStateTest, testing::ValuesIn(state_setups()), setup_name);

}  // namespace
}  // namespace tessera::test
