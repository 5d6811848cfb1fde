// SPDX-License-Identifier: Apache-2.0
// Which draws are text, the draft layer's rows, and the rows of the next round.
#include "cpu/round.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "cpu/floats.h"
#include "cpu/sample.h"

namespace tessera::cpu {
namespace {

constexpr int kAxes = 3;

uint64_t nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
}

/// What goes on from a draw, also from one that failed.
int32_t token_of(const ops::SampledToken& drawn) {
  return drawn.status == ops::SampleStatus::kDrawn ? drawn.token : 0;
}

void set_position(int32_t* positions, int row, int64_t position) {
  std::fill_n(positions + kAxes * row, kAxes, static_cast<int32_t>(position));
}

/// Whether the text ends with `drawn`, its `count`-th token of this round.
bool ends_text(const ops::RoundSequence& sequence, const ops::SampledToken& drawn, int count) {
  const int32_t* stops = sequence.stops.data();
  const int32_t* last = stops + sequence.num_stops;
  return drawn.status != ops::SampleStatus::kDrawn || count >= sequence.left ||
         std::find(stops, last, drawn.token) != last;
}

ops::RoundOutcome judge(const ops::RoundState& state, const ops::RowSpan& span,
                        const ops::RoundSequence& sequence) {
  ops::RoundOutcome outcome;
  for (bool goes_on = true; goes_on;) {
    const int row = span.row_begin + outcome.kept++;
    const ops::SampledToken& drawn = state.drawn[row];
    outcome.ended = ends_text(sequence, drawn, outcome.kept) ? 1 : 0;
    goes_on =
        outcome.ended == 0 && outcome.kept < span.num_rows && state.ids[row + 1] == drawn.token;
  }
  return outcome;
}

template <class T>
void store(std::byte* slot, size_t offset, T value) {
  std::memcpy(slot + offset, &value, sizeof value);
}

/// What the slot keeps of the launch.
void store_counts(const ops::AcceptArgs& args, int index, int kept) {
  const ops::RowSpan& span = args.state.spans[index];
  if (args.pending) store(span.slot, args.accepted_offset, static_cast<int32_t>(kept));
  if (kept == 0) return;
  if (index < args.drafting) store(span.slot, args.draft_rows_offset, span.position + kept);
  const auto width = static_cast<size_t>(args.width);
  const auto last = static_cast<size_t>(span.row_begin + kept - 1);
  std::memcpy(span.slot + args.wide_offset, floats(args.wide) + last * width,
              width * sizeof(float));
}

/// The row of the draft layer from which the next token but one is drawn. Of a text that has ended,
/// all rows from here on lie behind it, where nothing counts.
void prepare_live_row(const ops::RoundState& state, int index, const ops::RoundOutcome& outcome) {
  const ops::RowSpan& span = state.spans[index];
  const int row = span.row_begin + std::max(outcome.kept - 1, 0);
  const int64_t position = span.position + outcome.kept - (outcome.ended != 0 ? 0 : 1);
  state.draft_spans[index].position = position;
  state.draft_ids[index] = token_of(state.drawn[row]);
  set_position(state.draft_positions, index, position);
  state.draft_sources[index] = outcome.ended != 0 ? index : row;
  state.draft_settings[index].position = position + 2;
}

}  // namespace

ops::RoundState RoundOps::begin_round(const ops::RoundInputs& inputs) {
  layout_ = {static_cast<int>(inputs.batch.spans.size()), inputs.batch.num_rows};
  if (block_.bytes() < layout_.bytes()) block_ = MemoryBlock(memory(), layout_.bytes());
  std::fill_n(block_.data(), layout_.bytes(), std::byte{});
  state_ = layout_.at(block_.data());
  ops::start_round(inputs, state_);
  return state_;
}

ops::RoundRows RoundOps::use_rows(ops::RoundPart part, int spans, int rows) {
  const ops::RowSpan* first = part == ops::RoundPart::kLive ? state_.draft_spans : state_.spans;
  return {.batch = {.spans = {first, static_cast<size_t>(spans)},
                    .num_rows = rows,
                    .role = ops::Role::kDecode},
          .buffers = ops::buffers_of(state_, part, spans, rows)};
}

void RoundOps::draw(const ops::DrawArgs& args) {
  const auto rows = static_cast<size_t>(args.rows);
  cpu::sample({.logits = args.logits,
               .vocab = args.vocab,
               .rows = {args.settings, rows},
               .results = {args.results, rows}});
}

void RoundOps::accept(const ops::AcceptArgs& args) {
  const ops::RoundState& state = args.state;
  state.times->accepted = nanoseconds();
  for (int index = 0; index < state.num_spans; ++index) {
    const ops::RowSpan& span = state.spans[index];
    ops::RoundSequence& sequence = state.sequences[index];
    ops::RoundOutcome& outcome = state.outcomes[index];
    outcome = sequence.left == 0 ? ops::RoundOutcome{.ended = 1} : judge(state, span, sequence);
    for (int inner = 0; inner < span.num_rows; ++inner)
      state.next_ids[span.row_begin + inner] = token_of(state.drawn[span.row_begin + inner]);
    store_counts(args, index, outcome.kept);
    sequence.left = outcome.ended != 0 ? 0 : sequence.left - outcome.kept;
    prepare_live_row(state, index, outcome);
  }
}

void RoundOps::take_drafts(const ops::TakeDraftsArgs& args) {
  const ops::RoundState& state = args.state;
  for (int index = 0; index < args.count; ++index) {
    ops::RowSpan& live = state.draft_spans[index];
    const int32_t number = token_of(state.drafted[index]);
    const int32_t draft = args.listed != nullptr ? args.listed[number] : number;
    state.outcomes[index].drafts[static_cast<size_t>(args.place)] = draft;
    ++live.position;
    ++state.draft_settings[index].position;
    state.draft_ids[index] = draft;
    set_position(state.draft_positions, index, live.position);
    state.draft_sources[index] = index;
  }
}

void RoundOps::advance(const ops::AdvanceArgs& args) {
  const ops::RoundState& state = args.state;
  state.times->advanced = nanoseconds();
  for (int index = 0; index < state.num_spans; ++index) {
    ops::RowSpan& span = state.spans[index];
    const ops::RoundOutcome& outcome = state.outcomes[index];
    if (outcome.kept == 0) continue;
    const int32_t pending = token_of(state.drawn[span.row_begin + outcome.kept - 1]);
    span.position += outcome.kept;
    for (int inner = 0; inner < span.num_rows; ++inner) {
      const int row = span.row_begin + inner;
      const int64_t position = span.position + inner;
      state.ids[row] = inner == 0 ? pending : outcome.drafts[static_cast<size_t>(inner - 1)];
      set_position(state.positions, row, position);
      state.settings[row].position = position + 1;
    }
  }
}

void RoundOps::end_round() {
  Report& report = reports_[queue_.push()];
  const std::byte* first = block_.data() + layout_.report_offset();
  report.layout = layout_;
  report.bytes.assign(first, first + layout_.report_bytes());
}

ops::RoundReport RoundOps::read_round() {
  const Report& report = reports_[queue_.pop()];
  return report.layout.report(report.bytes.data());
}

}  // namespace tessera::cpu
