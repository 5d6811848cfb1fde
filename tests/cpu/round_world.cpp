// SPDX-License-Identifier: Apache-2.0
// The definition of a round, and comparisons with what a backend made of it.
#include "cpu/round_world.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace tessera::test {
namespace {

constexpr std::byte kUntouched{0x5A};

bool is_drawn(const ops::SampledToken& drawn) { return drawn.status == ops::SampleStatus::kDrawn; }

int32_t token_of(const ops::SampledToken& drawn) { return is_drawn(drawn) ? drawn.token : 0; }

std::vector<int32_t> three_axes(int64_t position) {
  return std::vector<int32_t>(3, static_cast<int32_t>(position));
}

/// Without the bytes behind the last field.
void expect_settings(const ops::SampleRow& got, const ops::SampleRow& want, size_t index) {
  constexpr size_t kBytes = offsetof(ops::SampleRow, num_edits) + sizeof(want.num_edits);
  ASSERT_EQ(got.position, want.position) << index;
  ASSERT_EQ(std::memcmp(&got, &want, kBytes), 0) << index;
}

template <class T>
void put(std::vector<std::byte>& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace

void RoundText::accept(std::span<const ops::SampledToken> drawn) {
  kept = 0;
  drafts = {};
  if (settings.left == 0) ended = true;
  while (!ended) {
    const ops::SampledToken& draw = drawn[static_cast<size_t>(kept++)];
    pending = token_of(draw);
    const auto stops = std::span(settings.stops).first(static_cast<size_t>(settings.num_stops));
    ended = !is_drawn(draw) || --settings.left == 0 ||
            std::find(stops.begin(), stops.end(), draw.token) != stops.end();
    const auto next = static_cast<size_t>(kept);
    if (next == ids.size() || ids[next] != draw.token) break;
  }
  if (ended) settings.left = 0;
}

void RoundText::advance() {
  if (kept == 0) return;
  position += kept;
  ids.front() = pending;
  std::copy_n(drafts.begin(), ids.size() - 1, ids.begin() + 1);
}

RoundWorld::RoundWorld(ops::Ops& backend, DType activation, std::vector<RoundText> sequences,
                       int width)
    : texts(std::move(sequences)),
      backend_(backend),
      memory_(backend.memory()),
      row_bytes_(static_cast<size_t>(width) * dtype_bytes(activation)),
      width_(width),
      slot_bytes_((kWideAt + row_bytes_ + 255) / 256 * 256),
      drawn_{} {
  slots_ = MemoryBlock(memory_, texts.size() * slot_bytes_);
  want_slots_.assign(texts.size() * slot_bytes_, kUntouched);
  memory_.copy_in(slots_.data(), want_slots_.data(), want_slots_.size());
  std::vector<ops::RowSpan> spans;
  std::vector<int32_t> ids;
  std::vector<ops::RoundSequence> settings;
  for (const RoundText& text : texts) {
    first_rows_.push_back(static_cast<int>(ids.size()));
    spans.push_back({.row_begin = first_rows_.back(),
                     .num_rows = static_cast<int>(text.ids.size()),
                     .position = text.position,
                     .slot = slots_.data() + spans.size() * slot_bytes_});
    ids.insert(ids.end(), text.ids.begin(), text.ids.end());
    settings.push_back(text.settings);
  }
  Random random(302);
  for (size_t at = 0; at < ids.size() * row_bytes_; ++at)
    wide_bytes_.push_back(static_cast<std::byte>(random.below(256)));
  wide_ = MemoryBlock(memory_, wide_bytes_.size());
  memory_.copy_in(wide_.data(), wide_bytes_.data(), wide_bytes_.size());
  next_ids_.assign(ids.size(), 0);
  state_ = backend.begin_round({.batch = {.spans = spans,
                                          .num_rows = static_cast<int>(ids.size()),
                                          .role = ops::Role::kDecode},
                                .ids = ids,
                                .sequences = settings});
}

ops::AcceptArgs RoundWorld::accept_args(const Accept& how) const {
  return {.state = state_,
          .wide = wide_.data(),
          .width = width_,
          .wide_offset = kWideAt,
          .pending = how.pending,
          .accepted_offset = kAcceptedAt,
          .drafting = how.drafting,
          .draft_rows_offset = kDraftRowsAt};
}

void RoundWorld::accept(const std::vector<ops::SampledToken>& drawn, const Accept& how) {
  memory_.copy_in(state_.drawn, drawn.data(), drawn.size() * sizeof(drawn[0]));
  backend_.accept(accept_args(how));
  drawn_ = drawn;
  live_.resize(texts.size());
  for (size_t index = 0; index < texts.size(); ++index) {
    RoundText& text = texts[index];
    const auto first = static_cast<size_t>(first_rows_[index]);
    text.accept(std::span(drawn).subspan(first, text.ids.size()));
    for (size_t row = first; row < first + text.ids.size(); ++row)
      next_ids_[row] = token_of(drawn[row]);
    const size_t slot = index * slot_bytes_;
    if (how.pending) put(want_slots_, slot + kAcceptedAt, static_cast<int32_t>(text.kept));
    const size_t last = first + static_cast<size_t>(std::max(text.kept - 1, 0));
    if (text.kept > 0) {
      if (static_cast<int>(index) < how.drafting)
        put(want_slots_, slot + kDraftRowsAt, text.position + text.kept);
      std::memcpy(want_slots_.data() + slot + kWideAt, wide_bytes_.data() + last * row_bytes_,
                  row_bytes_);
    }
    const int64_t position = text.position + text.kept - (text.ended ? 0 : 1);
    live_[index] = {.position = position,
                    .id = token_of(drawn[last]),
                    .source = static_cast<int32_t>(text.ended ? index : last),
                    .draw_position = position + 2};
  }
}

void RoundWorld::take_drafts(const std::vector<ops::SampledToken>& drafted, int place,
                             std::span<const int32_t> listed) {
  memory_.copy_in(state_.drafted, drafted.data(), drafted.size() * sizeof(drafted[0]));
  MemoryBlock list(memory_, listed.size_bytes());
  memory_.copy_in(list.data(), listed.data(), listed.size_bytes());
  backend_.take_drafts(
      {.state = state_,
       .listed = listed.empty() ? nullptr : reinterpret_cast<const int32_t*>(list.data()),
       .place = place,
       .count = static_cast<int>(drafted.size())});
  for (size_t index = 0; index < drafted.size(); ++index) {
    Live& live = live_[index];
    const auto number = static_cast<size_t>(token_of(drafted[index]));
    live.id = listed.empty() ? static_cast<int32_t>(number) : listed[number];
    texts[index].drafts[static_cast<size_t>(place)] = live.id;
    live.source = static_cast<int32_t>(index);
    ++live.position;
    ++live.draw_position;
  }
}

void RoundWorld::advance() {
  backend_.advance({.state = state_});
  for (RoundText& text : texts) text.advance();
}

void RoundWorld::expect_span(const ops::RowSpan& got, size_t index, int row_begin, int rows,
                             int64_t position) const {
  ASSERT_EQ(got.row_begin, row_begin) << index;
  ASSERT_EQ(got.num_rows, rows) << index;
  ASSERT_EQ(got.position, position) << index;
  ASSERT_EQ(got.slot, slots_.data() + index * slot_bytes_);
}

void RoundWorld::expect_slots() {
  ASSERT_TRUE(read(slots_.data(), want_slots_.size()) == want_slots_);
}

void RoundWorld::expect_accepted() {
  expect_slots();
  const auto outcomes = read(state_.outcomes, texts.size());
  const auto sequences = read(state_.sequences, texts.size());
  for (size_t index = 0; index < texts.size(); ++index) {
    const RoundText& text = texts[index];
    ASSERT_EQ(outcomes[index].kept, text.kept) << index;
    ASSERT_EQ(outcomes[index].ended, text.ended ? 1 : 0) << index;
    ASSERT_EQ(outcomes[index].drafts, text.drafts) << index;
    ASSERT_EQ(sequences[index].left, text.settings.left) << index;
  }
  ASSERT_EQ(read(state_.next_ids, num_rows()), next_ids_);
  ASSERT_NO_FATAL_FAILURE(expect_live_rows());
}

void RoundWorld::expect_live_rows() {
  const auto spans = read(state_.draft_spans, texts.size());
  const auto ids = read(state_.draft_ids, texts.size());
  const auto positions = read(state_.draft_positions, 3 * texts.size());
  const auto sources = read(state_.draft_sources, texts.size());
  const auto settings = read(state_.draft_settings, texts.size());
  for (size_t index = 0; index < texts.size(); ++index) {
    const Live& live = live_[index];
    ASSERT_NO_FATAL_FAILURE(
        expect_span(spans[index], index, static_cast<int>(index), 1, live.position));
    ASSERT_EQ(ids[index], live.id) << index;
    ASSERT_EQ(sources[index], live.source) << index;
    const auto* own = positions.data() + 3 * index;
    ASSERT_EQ(std::vector<int32_t>(own, own + 3), three_axes(live.position)) << index;
    ops::SampleRow want = texts[index].settings.draw;
    want.position = live.draw_position;
    want.valid_vocab = texts[index].settings.draft_vocab;
    want.top_logprobs = -1;
    ASSERT_NO_FATAL_FAILURE(expect_settings(settings[index], want, index));
  }
}

void RoundWorld::expect_advanced() {
  expect_slots();
  const auto spans = read(state_.spans, texts.size());
  const auto ids = read(state_.ids, num_rows());
  const auto positions = read(state_.positions, 3 * num_rows());
  const auto settings = read(state_.settings, num_rows());
  for (size_t index = 0; index < texts.size(); ++index) {
    const RoundText& text = texts[index];
    const auto rows = static_cast<int>(text.ids.size());
    ASSERT_NO_FATAL_FAILURE(
        expect_span(spans[index], index, first_rows_[index], rows, text.position));
    for (int inner = 0; inner < rows; ++inner) {
      const auto row = static_cast<size_t>(first_rows_[index] + inner);
      ASSERT_EQ(ids[row], text.ids[static_cast<size_t>(inner)]) << "row " << row;
      const auto* own = positions.data() + 3 * row;
      ASSERT_EQ(std::vector<int32_t>(own, own + 3), three_axes(text.position + inner));
      ops::SampleRow want = text.settings.draw;
      want.position = text.position + inner + 1;
      ASSERT_NO_FATAL_FAILURE(expect_settings(settings[row], want, row));
    }
  }
}

void RoundWorld::expect_report(const ops::RoundReport& report) const {
  ASSERT_EQ(report.outcomes.size(), texts.size());
  for (size_t index = 0; index < texts.size(); ++index) {
    ASSERT_EQ(report.outcomes[index].kept, texts[index].kept);
    ASSERT_EQ(report.outcomes[index].ended, texts[index].ended ? 1 : 0);
    ASSERT_EQ(report.outcomes[index].drafts, texts[index].drafts);
  }
  ASSERT_EQ(report.drawn.size(), drawn_.size());
  ASSERT_EQ(std::memcmp(report.drawn.data(), drawn_.data(), report.drawn.size_bytes()), 0);
}

}  // namespace tessera::test
