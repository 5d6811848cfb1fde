// SPDX-License-Identifier: Apache-2.0
// Decode rounds that need no host between their launches, nor between rounds: what was drawn, how
// many rows of each sequence are text and what is drafted stays in the backend's memory, where the
// next launch finds its rows. The host hands over a round once (`Ops::begin_round`), may repeat it,
// and reads the reports later.
//
// A round, for sequences s with rows [pending, d_1 .. d_k]:
//   trunk over all rows; draw one token a row;
//   accept: a row is text while every draft before it equals the draw of the row before it;
//   draft layer over the same rows, keys and values only, each with the token drawn from it;
//   the live row (the last one that is text) with all of the draft layer; draw; take the draft;
//   the same with the layer's own output, once for every further draft;
//   advance: the rows of the next round are [last draw, the drafts].
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ops/cost.h"
#include "ops/rows.h"
#include "ops/sample.h"

namespace tessera::ops {

inline constexpr int kMaxRoundDrafts = 8;  // of a sequence
inline constexpr int kMaxRoundStops = 16;

/// How a sequence draws and when its text ends.
struct RoundSequence {
  SampleRow draw{};     // settings without edits; every row of the sequence has its own position
  int draft_vocab = 0;  // draws of the draft layer look at so many rows of its head, without
                        // log-probabilities
  int32_t left = 0;     // tokens that the text may still get; 0: it has ended
  int32_t num_stops = 0;
  std::array<int32_t, kMaxRoundStops> stops{};  // the text ends with the first of these
};

/// What a round made of a sequence.
struct RoundOutcome {
  int32_t kept = 0;   // rows that are text, each with its draw; 0: the text had ended before
  int32_t ended = 0;  // 1: the text ends with the last of those draws, or before
  std::array<int32_t, kMaxRoundDrafts> drafts{};  // of the next round
};

/// Nanoseconds of the backend's clock, for shares of a round; 0 where it has none.
struct RoundTimes {
  uint64_t accepted = 0;  // the trunk is through
  uint64_t advanced = 0;  // the round is through
};

/// A round in the backend's memory. Valid until the next `begin_round`.
struct RoundState {
  int num_spans = 0;
  int num_rows = 0;
  // Rows of the trunk.
  RowSpan* spans = nullptr;        // [spans]
  int32_t* ids = nullptr;          // [rows] pending token, then drafts
  int32_t* positions = nullptr;    // [rows, 3]
  int32_t* row_numbers = nullptr;  // [rows] 0, 1, 2 ..: every row's logits, every row as a source
  SampleRow* settings = nullptr;   // [rows]
  SampledToken* drawn = nullptr;   // [rows]
  int32_t* next_ids = nullptr;     // [rows] tokens drawn, which the draft layer joins with the rows
  // Rows of the draft layer that are drafted from, one for each sequence.
  RowSpan* draft_spans = nullptr;       // [spans]
  int32_t* draft_ids = nullptr;         // [spans]
  int32_t* draft_positions = nullptr;   // [spans, 3]
  int32_t* draft_sources = nullptr;     // [spans] rows of the trunk, later of the draft layer
  SampleRow* draft_settings = nullptr;  // [spans]
  SampledToken* drafted = nullptr;      // [spans]
  RoundSequence* sequences = nullptr;   // [spans]
  RoundOutcome* outcomes = nullptr;     // [spans]
  RoundTimes* times = nullptr;
};

/// The rows that the next ops work on.
enum class RoundPart : uint8_t {
  kTrunk,    // all rows
  kLagging,  // the draft layer's: the trunk's rows with the tokens drawn from them
  kLive,     // one row of each of the first sequences
};

/// What the host hands over. `sequences` belong to the spans, in order.
struct RoundInputs {
  RowBatch batch;                  // decode role
  std::span<const int32_t> ids{};  // [rows]
  std::span<const RoundSequence> sequences{};
};

/// What the host reads of a round, in host memory until the next `read_round`.
struct RoundReport {
  std::span<const RoundOutcome> outcomes{};  // [spans]
  std::span<const SampledToken> drawn{};     // [rows]
  RoundTimes times{};
};

/// Draws without the host: settings and results lie in the backend's memory, and nothing waits.
/// Rows have no edits.
struct DrawArgs {
  const float* logits = nullptr;  // [rows, vocab]
  int vocab = 0;
  int rows = 0;
  bool best_only = false;               // every row has temperature 0 and no log-probabilities
  const SampleRow* settings = nullptr;  // [rows]
  SampledToken* results = nullptr;      // [rows], written whole
};

/// Decides which rows are text and prepares the draft layer's rows. Per sequence that has not
/// ended: kept = 1 + the drafts that equal the draw before them, up to the row whose draw ends the
/// text (a stop token, the last token that it may get, a draw that failed); the outcome; the slot's
/// counts; the stored wide row; the live row. One that has ended keeps nothing, and its slot's
/// accepted count becomes 0: its rows go on to be computed, at positions behind the text.
struct AcceptArgs {
  RoundState state;
  const void* wide = nullptr;  // [rows, width] activations of the trunk
  int width = 0;
  size_t wide_offset = 0;  // in the slot: [width] of the last row that is text
  bool pending = false;    // the launch left rows pending (GdnArgs::verify): count the kept ones
  size_t accepted_offset = 0;    // in the slot: int32, written when `pending`
  int drafting = 0;              // the first sequences run the draft layer: their count is kept
  size_t draft_rows_offset = 0;  // in the slot: int64, rows that the draft layer holds
};

/// After the draw from the live rows of the first `count` sequences: their draft number `place`
/// becomes part of the outcome, and the id of their next row of the draft layer, which reads that
/// layer's own output. A draw that failed drafts the first token.
struct TakeDraftsArgs {
  RoundState state;
  const int32_t* listed = nullptr;  // tokens of the rows of the draft head; nullptr: their numbers
  int place = 0;
  int count = 0;
};

/// The rows of the next round: positions, ids and settings. A sequence has as many rows as before:
/// the first are the last draw and the drafts.
struct AdvanceArgs {
  RoundState state;
};

Cost cost(const DrawArgs& args);
Cost cost(const AcceptArgs& args);
Cost cost(const TakeDraftsArgs& args);
Cost cost(const AdvanceArgs& args);

}  // namespace tessera::ops
