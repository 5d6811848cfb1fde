// SPDX-License-Identifier: Apache-2.0
// A decode round as one step: trunk, draws, acceptance, draft layer. Lengths, tokens and what was
// accepted lie in the backend's memory (ops/round.h).
#include <algorithm>
#include <cassert>
#include <cstddef>

#include "model/text_model.h"

namespace tessera {

/// Everything is reserved before the key is made: its addresses say where the step works.
void TextModel::round(const ops::RoundState& state, const RoundShape& shape, int budget_blocks) {
  assert(shape.lagging_rows <= state.num_rows && shape.drafting[0] <= shape.lagging_spans);
  const int live_rows = shape.drafting[0];
  if (shape.lagging_rows > 0) {
    hold_draft_wide(std::max(shape.lagging_rows, live_rows));
    if (shape.share_selection) hold_draft_lists(live_rows, budget_blocks);
    reserve_draft(ops::Role::kDecode, shape.lagging_rows, live_rows);
  }
  reserve_trunk(ops::Role::kDecode, state.num_rows, state.num_rows);
  const ops::StepKey key{.kind = ops::StepKind::kRound,
                         .num_spans = state.num_spans,
                         .num_rows = state.num_rows,
                         .num_logit_rows = state.num_rows,
                         .buffers = trunk_.wide,
                         .temporaries = block_arena_.base(),
                         .source = draft_.arena.base(),
                         .lists = shape.share_selection ? draft_lists_.data() : nullptr,
                         .round = state.spans,
                         .verify = shape.verify,
                         .best_only = shape.best_only,
                         .best_drafts = shape.best_drafts,
                         .lagging_spans = shape.lagging_spans,
                         .lagging_rows = shape.lagging_rows,
                         .drafting = shape.drafting};
  ops_.repeat(key, [&] { run_round(state, shape, budget_blocks); });
}

void TextModel::run_round(const ops::RoundState& state, const RoundShape& shape,
                          int budget_blocks) {
  run_round_trunk(state, shape, budget_blocks);
  if (shape.lagging_rows > 0) run_round_drafts(state, shape, budget_blocks);
  ops_.advance({.state = state});
}

void TextModel::run_round_trunk(const ops::RoundState& state, const RoundShape& shape,
                                int budget_blocks) {
  const ops::RoundRows rows =
      ops_.use_rows(ops::RoundPart::kTrunk, state.num_spans, state.num_rows);
  pass_ = &trunk_;
  pass_->inputs = rows.buffers;
  run({.batch = rows.batch,
       .logit_rows = {rows.buffers.logit_rows, static_cast<size_t>(state.num_rows)},
       .budget_blocks = budget_blocks,
       .verify = shape.verify,
       .in_round = true});
  ops_.draw({.logits = pass_->logits,
             .vocab = config_.vocab_size,
             .rows = state.num_rows,
             .best_only = shape.best_only,
             .settings = state.settings,
             .results = state.drawn});
  ops::AcceptArgs accept{.state = state,
                         .wide = pass_->wide,
                         .width = config_.wide(),
                         .wide_offset = layout_.offset(StatePart::kWideResidual, 0),
                         .pending = shape.verify,
                         .drafting = shape.lagging_spans};
  if (layout_.pending_rows() > 0) {
    const size_t counts = layout_.offset(StatePart::kPendingDrafts, 0);
    accept.accepted_offset = counts + offsetof(DraftCounts, accepted_rows);
    accept.draft_rows_offset = counts + offsetof(DraftCounts, draft_rows);
  }
  ops_.accept(accept);
}

/// Keys and values of every row with the token drawn from it: of those that are no text, nobody
/// reads what is written before it is written again. Then the live rows, and chains on them.
void TextModel::run_round_drafts(const ops::RoundState& state, const RoundShape& shape,
                                 int budget_blocks) {
  const ops::RoundRows lagging =
      ops_.use_rows(ops::RoundPart::kLagging, shape.lagging_spans, shape.lagging_rows);
  reserve_draft(ops::Role::kDecode, shape.lagging_rows, 0);
  pass_->inputs = lagging.buffers;
  run_draft({.batch = lagging.batch, .budget_blocks = budget_blocks}, trunk_.wide,
            {.cache_only = true});
  const void* source = trunk_.wide;
  for (int place = 0; place < ops::kMaxRoundDrafts; ++place) {
    const int count = shape.drafting[static_cast<size_t>(place)];
    if (count == 0) return;
    const ops::RoundRows live = ops_.use_rows(ops::RoundPart::kLive, count, count);
    reserve_draft(ops::Role::kDecode, count, count);
    pass_->inputs = live.buffers;
    const DraftSelection selection = !shape.share_selection ? DraftSelection::kFresh
                                     : place == 0           ? DraftSelection::kKept
                                                            : DraftSelection::kContinued;
    run_draft({.batch = live.batch, .budget_blocks = budget_blocks}, source,
              draft_selecting(selection, budget_blocks));
    source = draft_.wide;
    ops_.draw({.logits = pass_->logits,
               .vocab = config_.vocab_size,
               .rows = count,
               .best_only = shape.best_drafts,
               .settings = state.draft_settings,
               .results = state.drafted});
    ops_.take_drafts({.state = state, .listed = listed_, .place = place, .count = count});
  }
}

}  // namespace tessera
