// SPDX-License-Identifier: Apache-2.0
// Places the parts of a round one after the other, and fills them in host memory.
#include "ops/round_layout.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "core/arena.h"

namespace tessera::ops {
namespace {

constexpr size_t kAlign = 64;
constexpr int kAxes = 3;

[[noreturn]] void refuse(const std::string& what, size_t expected, size_t found) {
  throw std::logic_error("round: " + what + ": expected " + std::to_string(expected) + ", found " +
                         std::to_string(found));
}

void check_inputs(const RoundInputs& inputs) {
  const auto rows = static_cast<size_t>(inputs.batch.num_rows);
  if (inputs.ids.size() != rows) refuse("ids of its rows", rows, inputs.ids.size());
  if (inputs.sequences.size() != inputs.batch.spans.size())
    refuse("sequences of its spans", inputs.batch.spans.size(), inputs.sequences.size());
  int next_row = 0;
  for (const RowSpan& span : inputs.batch.spans) {
    if (span.row_begin != next_row)
      refuse("first row of a span", static_cast<size_t>(next_row),
             static_cast<size_t>(span.row_begin));
    if (span.num_rows < 1 || span.num_rows > kMaxRoundDrafts + 1)
      refuse("rows of a sequence, at least one and at most", kMaxRoundDrafts + 1,
             static_cast<size_t>(span.num_rows));
    next_row += span.num_rows;
  }
  if (next_row != inputs.batch.num_rows)
    refuse("rows of all spans", rows, static_cast<size_t>(next_row));
  for (const RoundSequence& sequence : inputs.sequences) {
    if (sequence.num_stops < 0 || sequence.num_stops > kMaxRoundStops)
      refuse("stop tokens of a sequence, at most", kMaxRoundStops,
             static_cast<size_t>(sequence.num_stops));
    if (sequence.draw.num_edits != 0)
      refuse("edits of logits", 0, static_cast<size_t>(sequence.draw.num_edits));
  }
}

/// Row `row` of the trunk: the token after it is drawn with that token's position.
void start_row(const RoundState& state, int row, int32_t id, int64_t position,
               const SampleRow& draw) {
  state.ids[row] = id;
  std::fill_n(state.positions + kAxes * row, kAxes, static_cast<int32_t>(position));
  state.settings[row] = draw;
  state.settings[row].position = position + 1;
}

}  // namespace

RoundLayout::RoundLayout(int num_spans, int num_rows) : num_spans_(num_spans), num_rows_(num_rows) {
  const auto spans = static_cast<size_t>(num_spans), rows = static_cast<size_t>(num_rows);
  const auto add = [this](size_t count, size_t each) {
    const size_t at = bytes_;
    bytes_ += align_up(count * each, kAlign);
    return at;
  };
  spans_ = add(spans, sizeof(RowSpan));
  ids_ = add(rows, sizeof(int32_t));
  positions_ = add(kAxes * rows, sizeof(int32_t));
  row_numbers_ = add(rows, sizeof(int32_t));
  settings_ = add(rows, sizeof(SampleRow));
  next_ids_ = add(rows, sizeof(int32_t));
  draft_spans_ = add(spans, sizeof(RowSpan));
  draft_ids_ = add(spans, sizeof(int32_t));
  draft_positions_ = add(kAxes * spans, sizeof(int32_t));
  draft_sources_ = add(spans, sizeof(int32_t));
  draft_settings_ = add(spans, sizeof(SampleRow));
  drafted_ = add(spans, sizeof(SampledToken));
  sequences_ = add(spans, sizeof(RoundSequence));
  outcomes_ = add(spans, sizeof(RoundOutcome));
  times_ = add(1, sizeof(RoundTimes));
  drawn_ = add(rows, sizeof(SampledToken));
}

RoundState RoundLayout::at(std::byte* block) const {
  const auto place = [block]<class T>(T*& pointer, size_t offset) {
    pointer = reinterpret_cast<T*>(block + offset);
  };
  RoundState state{.num_spans = num_spans_, .num_rows = num_rows_};
  place(state.spans, spans_);
  place(state.ids, ids_);
  place(state.positions, positions_);
  place(state.row_numbers, row_numbers_);
  place(state.settings, settings_);
  place(state.drawn, drawn_);
  place(state.next_ids, next_ids_);
  place(state.draft_spans, draft_spans_);
  place(state.draft_ids, draft_ids_);
  place(state.draft_positions, draft_positions_);
  place(state.draft_sources, draft_sources_);
  place(state.draft_settings, draft_settings_);
  place(state.drafted, drafted_);
  place(state.sequences, sequences_);
  place(state.outcomes, outcomes_);
  place(state.times, times_);
  return state;
}

RoundReport RoundLayout::report(const std::byte* copy) const {
  RoundReport report{
      .outcomes = {reinterpret_cast<const RoundOutcome*>(copy), static_cast<size_t>(num_spans_)},
      .drawn = {reinterpret_cast<const SampledToken*>(copy + drawn_ - outcomes_),
                static_cast<size_t>(num_rows_)}};
  report.times = *reinterpret_cast<const RoundTimes*>(copy + times_ - outcomes_);
  return report;
}

void start_round(const RoundInputs& inputs, const RoundState& state) {
  check_inputs(inputs);
  std::copy(inputs.batch.spans.begin(), inputs.batch.spans.end(), state.spans);
  std::copy(inputs.sequences.begin(), inputs.sequences.end(), state.sequences);
  std::iota(state.row_numbers, state.row_numbers + state.num_rows, 0);
  for (int index = 0; index < state.num_spans; ++index) {
    RowSpan& span = state.spans[index];
    const RoundSequence& sequence = state.sequences[index];
    for (int inner = 0; inner < span.num_rows; ++inner) {
      const int row = span.row_begin + inner;
      start_row(state, row, inputs.ids[static_cast<size_t>(row)], span.position + inner,
                sequence.draw);
    }
    RowSpan& live = state.draft_spans[index];
    live = span;
    live.row_begin = index;
    live.num_rows = 1;
    state.draft_sources[index] = index;
    SampleRow& drafting = state.draft_settings[index];
    drafting = sequence.draw;
    drafting.valid_vocab = sequence.draft_vocab;
    drafting.top_logprobs = -1;
  }
}

LaunchBuffers buffers_of(const RoundState& state, RoundPart part, int spans, int rows) {
  if (spans > state.num_spans || rows > state.num_rows)
    throw std::logic_error("round: more rows in use than it has");
  switch (part) {
    case RoundPart::kTrunk:
      return {.ids = state.ids, .positions = state.positions, .logit_rows = state.row_numbers};
    case RoundPart::kLagging:
      return {
          .ids = state.next_ids, .positions = state.positions, .source_rows = state.row_numbers};
    case RoundPart::kLive: break;
  }
  return {.ids = state.draft_ids,
          .positions = state.draft_positions,
          .source_rows = state.draft_sources};
}

size_t ReportQueue::push() {
  if (unread_ == kPlaces - 1) throw std::logic_error("round: two reports were not read yet");
  return static_cast<size_t>((first_ + unread_++) % kPlaces);
}

size_t ReportQueue::pop() {
  if (unread_ == 0) throw std::logic_error("round: no report to read");
  const int place = first_;
  first_ = (first_ + 1) % kPlaces;
  --unread_;
  return static_cast<size_t>(place);
}

}  // namespace tessera::ops
