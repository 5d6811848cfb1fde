// SPDX-License-Identifier: Apache-2.0
// The small ops of a round against their definition in a few lines: which draws are text, what the
// slot keeps, the draft layer's rows, the rows of the next round, and the reports.
#include <algorithm>

#include "cpu/round_world.h"

namespace tessera::test {
namespace {

constexpr int kWidth = 24;
const auto kFailed = ops::SampleStatus::kBadLogit;

/// A sequence that drafts 10, 11 .. after its pending token 5.
RoundText some_text(int drafts, int left = 100) {
  RoundText text{.position = 70, .ids = {5}, .settings = {.draft_vocab = 50, .left = left}};
  for (int draft = 0; draft < drafts; ++draft) text.ids.push_back(10 + draft);
  text.settings.draw = {.temperature = 0.5F, .valid_vocab = 77, .seed = 9, .top_logprobs = 2};
  return text;
}

/// Draws that agree with the drafts up to row `kept`, whose draw is 40.
std::vector<ops::SampledToken> some_draws(const RoundText& text, int kept) {
  std::vector<ops::SampledToken> drawn(text.ids.size(), {.token = 41});
  for (size_t row = 0; row + 1 < static_cast<size_t>(kept); ++row)
    drawn[row].token = text.ids[row + 1];
  drawn[static_cast<size_t>(kept) - 1].token = 40;
  return drawn;
}

class RoundOpTest : public OpTest {
 protected:
  RoundWorld world(std::vector<RoundText> texts, int width = kWidth) {
    return {*ops_, GetParam().activation, std::move(texts), width};
  }
};

TEST_P(RoundOpTest, KeepsDraftsThatWereDrawn) {
  for (int drafts = 0; drafts <= ops::kMaxRoundDrafts; ++drafts)
    for (int kept = 1; kept <= drafts + 1; ++kept)
      for (const bool pending : {false, true}) {
        SCOPED_TRACE(testing::Message() << drafts << " drafts, " << kept << " kept");
        const RoundText text = some_text(drafts);
        RoundWorld round = world({text});
        round.accept(some_draws(text, kept), {.pending = pending, .drafting = 1});
        EXPECT_EQ(round.texts[0].kept, kept);
        EXPECT_FALSE(round.texts[0].ended);
        ASSERT_NO_FATAL_FAILURE(round.expect_accepted());
        round.advance();
        ASSERT_NO_FATAL_FAILURE(round.expect_advanced());
      }
}

TEST_P(RoundOpTest, AStopTokenEndsTheTextWhereverItIs) {
  constexpr int kDrafts = 5;
  for (int place = 1; place <= kDrafts + 1; ++place)
    for (int stop = 0; stop < ops::kMaxRoundStops; ++stop) {
      SCOPED_TRACE(testing::Message() << "row " << place << ", stop " << stop);
      RoundText text = some_text(kDrafts);
      text.settings.num_stops = ops::kMaxRoundStops;
      text.settings.stops.fill(60);
      const bool is_draft = place <= kDrafts;
      text.settings.stops[static_cast<size_t>(stop)] =
          is_draft ? text.ids[static_cast<size_t>(place)] : 40;
      RoundWorld round = world({text});
      round.accept(some_draws(text, kDrafts + 1), {.pending = true, .drafting = 1});
      EXPECT_EQ(round.texts[0].kept, place);
      EXPECT_TRUE(round.texts[0].ended);
      ASSERT_NO_FATAL_FAILURE(round.expect_accepted());
      round.advance();
      ASSERT_NO_FATAL_FAILURE(round.expect_advanced());
    }
  RoundText text = some_text(1);
  text.settings.stops = {40, 0};  // no stops: none of them counts
  RoundWorld round = world({text});
  round.accept(some_draws(text, 2), {});
  EXPECT_FALSE(round.texts[0].ended);
  round.expect_accepted();
}

TEST_P(RoundOpTest, TheTextEndsWithItsLastToken) {
  for (int left = 0; left <= 5; ++left) {
    const RoundText text = some_text(3, left);
    RoundWorld round = world({text});
    round.accept(some_draws(text, 4), {.pending = true});
    EXPECT_EQ(round.texts[0].kept, std::min(left, 4));
    EXPECT_EQ(round.texts[0].ended, left <= 4);
    ASSERT_NO_FATAL_FAILURE(round.expect_accepted());
  }
}

/// Also when its token is the draft.
TEST_P(RoundOpTest, ADrawThatFailedEndsTheText) {
  for (int place = 0; place < 4; ++place) {
    const RoundText text = some_text(3);
    RoundWorld round = world({text});
    std::vector<ops::SampledToken> drawn = some_draws(text, 4);
    drawn[static_cast<size_t>(place)].status = kFailed;
    round.accept(drawn, {.pending = true, .drafting = 1});
    EXPECT_EQ(round.texts[0].kept, place + 1);
    EXPECT_TRUE(round.texts[0].ended);
    ASSERT_NO_FATAL_FAILURE(round.expect_accepted());
    round.advance();
    ASSERT_NO_FATAL_FAILURE(round.expect_advanced());
  }
}

/// The round after the last one applies what it kept, and the round after that nothing.
TEST_P(RoundOpTest, ATextThatHasEndedKeepsNothing) {
  std::vector<RoundText> texts = {some_text(2, 2), some_text(2), some_text(2)};
  RoundWorld round = world(texts);
  std::vector<ops::SampledToken> drawn;
  for (const RoundText& text : texts) {
    const auto own = some_draws(text, 3);
    drawn.insert(drawn.end(), own.begin(), own.end());
  }
  for (int repetition = 0; repetition < 3; ++repetition) {
    round.accept(drawn, {.pending = true, .drafting = 3});
    EXPECT_EQ(round.texts[0].kept, repetition == 0 ? 2 : 0);
    EXPECT_TRUE(round.texts[0].ended);
    EXPECT_GT(round.texts[1].kept, 0);
    ASSERT_NO_FATAL_FAILURE(round.expect_accepted());
    const std::vector<ops::SampledToken> drafted(3, {.token = 7});
    round.take_drafts(drafted, 0);
    round.take_drafts(drafted, 1);
    round.advance();
    ASSERT_NO_FATAL_FAILURE(round.expect_advanced());
  }
}

/// Widths that are copied as vectors and others, all rows of a full launch.
TEST_P(RoundOpTest, StoresTheLastRowThatIsText) {
  for (const int width : {1, 24, 65, 1032, 10240}) {
    std::vector<RoundText> texts;
    std::vector<ops::SampledToken> drawn;
    for (int index = 0; index < 16; ++index) {
      texts.push_back(some_text(5));
      const auto own = some_draws(texts.back(), 1 + index % 6);
      drawn.insert(drawn.end(), own.begin(), own.end());
    }
    RoundWorld round = world(std::move(texts), width);
    round.accept(drawn, {.pending = true, .drafting = 9});
    ASSERT_NO_FATAL_FAILURE(round.expect_accepted()) << "width " << width;
  }
}

/// Rounds of random texts, draws, drafts and shapes; few tokens, so that many agree.
TEST_P(RoundOpTest, RoundsFollowTheDefinition) {
  constexpr int kVocab = 4;
  Random random(301);
  for (int run = 0; run < sized(60, 4); ++run) {
    SCOPED_TRACE(testing::Message() << "run " << run);
    std::vector<RoundText> texts(static_cast<size_t>(1 + random.below(16)));
    for (RoundText& text : texts) {
      text.position = random.below(100000);
      text.ids.resize(static_cast<size_t>(1 + random.below(6)));
      for (int32_t& id : text.ids) id = random.below(kVocab);
      text.settings = {.draw = {.temperature = random.uniform(0, 2), .valid_vocab = kVocab},
                       .draft_vocab = random.below(kVocab),
                       .left = random.below(12),
                       .num_stops = random.below(3)};
      for (int32_t& stop : text.settings.stops) stop = kVocab - 1 + random.below(40);
    }
    RoundWorld round = world(std::move(texts), 1 + random.below(70));
    const std::vector<int32_t> listed = random.permutation(kVocab);
    const auto draw = [&](size_t rows) {
      std::vector<ops::SampledToken> drawn(rows);
      for (ops::SampledToken& one : drawn) {
        one.token = random.below(kVocab);
        if (random.below(40) == 0) one.status = kFailed;
      }
      return drawn;
    };
    const auto spans = static_cast<int>(round.texts.size());
    for (int repetition = 0; repetition < 4; ++repetition) {
      round.accept(draw(round.num_rows()),
                   {.pending = random.below(2) == 0, .drafting = random.below(spans + 1)});
      ASSERT_NO_FATAL_FAILURE(round.expect_accepted());
      int count = spans;
      for (int place = 0; place < ops::kMaxRoundDrafts; ++place) {
        count = random.below(count + 1);
        const bool is_short = random.below(2) == 0;
        round.take_drafts(draw(static_cast<size_t>(count)), place,
                          is_short ? std::span<const int32_t>(listed) : std::span<const int32_t>());
        ASSERT_NO_FATAL_FAILURE(round.expect_live_rows());
      }
      round.advance();
      ASSERT_NO_FATAL_FAILURE(round.expect_advanced());
      ops_->end_round();
      const ops::RoundReport report = ops_->read_round();
      ASSERT_NO_FATAL_FAILURE(round.expect_report(report));
      EXPECT_GE(report.times.advanced, report.times.accepted);
    }
  }
}

TEST_P(RoundOpTest, PartsAreTheirRows) {
  RoundWorld round = world({some_text(2), some_text(0), some_text(1)});
  const ops::RoundState& state = round.state();
  const ops::RoundRows trunk = ops_->use_rows(ops::RoundPart::kTrunk, 3, 6);
  EXPECT_EQ(trunk.batch.spans.size(), 3U);
  EXPECT_EQ(trunk.batch.num_rows, 6);
  EXPECT_EQ(trunk.batch.role, ops::Role::kDecode);
  EXPECT_EQ(trunk.buffers.ids, state.ids);
  EXPECT_EQ(trunk.buffers.positions, state.positions);
  EXPECT_EQ(trunk.buffers.logit_rows, state.row_numbers);
  const ops::RoundRows lagging = ops_->use_rows(ops::RoundPart::kLagging, 2, 4);
  EXPECT_EQ(lagging.batch.spans.size(), 2U);
  EXPECT_EQ(lagging.batch.spans[1].row_begin, 3);
  EXPECT_EQ(lagging.batch.num_rows, 4);
  EXPECT_EQ(lagging.buffers.ids, state.next_ids);
  EXPECT_EQ(lagging.buffers.positions, state.positions);
  EXPECT_EQ(lagging.buffers.source_rows, state.row_numbers);
  const ops::RoundRows live = ops_->use_rows(ops::RoundPart::kLive, 2, 2);
  EXPECT_EQ(live.batch.spans[1].row_begin, 1);
  EXPECT_EQ(live.batch.spans[1].num_rows, 1);
  EXPECT_EQ(live.buffers.ids, state.draft_ids);
  EXPECT_EQ(live.buffers.positions, state.draft_positions);
  EXPECT_EQ(live.buffers.source_rows, state.draft_sources);
  EXPECT_THROW(ops_->use_rows(ops::RoundPart::kTrunk, 4, 6), std::logic_error);
  EXPECT_THROW(ops_->use_rows(ops::RoundPart::kTrunk, 3, 7), std::logic_error);
}

/// Reports come in order, across rounds of other sizes, and the last one that was read stays.
TEST_P(RoundOpTest, TwoReportsMayWait) {
  EXPECT_THROW(ops_->read_round(), std::logic_error);
  const RoundText text = some_text(3);
  RoundWorld first = world({text});
  first.accept(some_draws(text, 2), {});
  ops_->end_round();
  RoundWorld second = world({text, text});
  std::vector<ops::SampledToken> drawn = some_draws(text, 4);
  drawn.insert(drawn.end(), drawn.begin(), drawn.end());
  second.accept(drawn, {});
  ops_->end_round();
  EXPECT_THROW(ops_->end_round(), std::logic_error);
  const ops::RoundReport oldest = ops_->read_round();
  second.accept(drawn, {});
  ops_->end_round();
  ASSERT_NO_FATAL_FAILURE(first.expect_report(oldest));
  EXPECT_EQ(ops_->read_round().outcomes.size(), 2U);
  ASSERT_NO_FATAL_FAILURE(second.expect_report(ops_->read_round()));
  EXPECT_THROW(ops_->read_round(), std::logic_error);
}

TEST_P(RoundOpTest, RefusesWhatDoesNotBelongTogether) {
  RoundText many_stops = some_text(1), edited = some_text(1);
  many_stops.settings.num_stops = ops::kMaxRoundStops + 1;
  edited.settings.draw.num_edits = 1;
  for (const RoundText& text : {some_text(ops::kMaxRoundDrafts + 1), many_stops, edited})
    EXPECT_THROW(world({text}), std::logic_error);
  const ops::RowSpan span{.num_rows = 2};
  const std::array<int32_t, 2> ids{1, 2};
  const ops::RoundSequence sequence;
  const ops::RowBatch batch{.spans = {&span, 1}, .num_rows = 2, .role = ops::Role::kDecode};
  EXPECT_THROW(ops_->begin_round({.batch = batch, .ids = ids}), std::logic_error);
  EXPECT_THROW(ops_->begin_round({.batch = batch, .sequences = {&sequence, 1}}), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(Cpu, RoundOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
