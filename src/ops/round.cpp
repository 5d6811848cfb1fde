// SPDX-License-Identifier: Apache-2.0
// What a round's small ops move, and backends that run none.
#include "ops/round.h"

#include <stdexcept>

#include "ops/ops.h"

namespace tessera::ops {
namespace {

constexpr double kInt = sizeof(int32_t);
constexpr double kAxes = 3;

[[noreturn]] void no_rounds() { throw std::logic_error("this backend runs no rounds"); }

}  // namespace

Cost cost(const DrawArgs& args) {
  const double rows = args.rows;
  return {
      .bytes_read = rows * (args.vocab * static_cast<double>(sizeof(float)) + sizeof(SampleRow)),
      .bytes_written = rows * sizeof(SampledToken)};
}

/// Without the wide rows: one is copied only where a draft was rejected.
Cost cost(const AcceptArgs& args) {
  const double rows = args.state.num_rows, spans = args.state.num_spans;
  constexpr double kDrawn = sizeof(SampleStatus) + kInt;  // of a draw: status, token
  constexpr double kLive = sizeof(RowSpan) + (kAxes + 2) * kInt + sizeof(int64_t);
  return {.bytes_read = rows * (kDrawn + kInt) + spans * (sizeof(RowSpan) + sizeof(RoundSequence)),
          .bytes_written = rows * kInt + spans * (sizeof(RoundOutcome) + kInt + kLive) +
                           (args.pending ? spans * kInt : 0) + args.drafting * sizeof(int64_t)};
}

Cost cost(const TakeDraftsArgs& args) {
  const double count = args.count;
  constexpr double kPosition = sizeof(int64_t);  // of the span, of the settings
  return {.bytes_read = count * (sizeof(SampleStatus) + kInt + 2 * kPosition),
          .bytes_written = count * ((kAxes + 3) * kInt + 2 * kPosition)};
}

Cost cost(const AdvanceArgs& args) {
  const double rows = args.state.num_rows, spans = args.state.num_spans;
  return {.bytes_read = spans * (sizeof(RowSpan) + sizeof(RoundOutcome) + kInt),
          .bytes_written = rows * ((kAxes + 1) * kInt + sizeof(int64_t)) + spans * sizeof(RowSpan)};
}

RoundState Ops::begin_round(const RoundInputs&) { no_rounds(); }
RoundRows Ops::use_rows(RoundPart, int, int) { no_rounds(); }
void Ops::draw(const DrawArgs&) { no_rounds(); }
void Ops::accept(const AcceptArgs&) { no_rounds(); }
void Ops::take_drafts(const TakeDraftsArgs&) { no_rounds(); }
void Ops::advance(const AdvanceArgs&) { no_rounds(); }
void Ops::end_round() { no_rounds(); }
RoundReport Ops::read_round() { no_rounds(); }

}  // namespace tessera::ops
