// SPDX-License-Identifier: Apache-2.0
// The draft layer's share of a round: rows of committed tokens, the live row, the chain.
#include <algorithm>
#include <utility>

#include "core/log.h"
#include "runtime/engine_loop.h"
#include "runtime/guarded.h"

namespace tessera {

/// The last row of the layer was made with the token that was expected to follow; the prompt knows
/// the right one. False: the state goes on without drafts, because it was made without the layer or
/// because the page of that row is shared and there is none for a copy.
bool EngineLoop::resume_drafting(SequenceId id, std::span<const int32_t> prompt) {
  const int64_t length = model_->store().length(id);
  if (model_->draft_rows(id) != length) {
    log_message(LogLevel::kInfo, "no drafts: the resumed state was made without them");
    return false;
  }
  const DraftRows last{.sequence = id,
                       .position = length - 1,
                       .next_ids = prompt.subspan(static_cast<size_t>(length), 1)};
  const auto status = guarded([&]() -> Result<void> {
    // The copy of a shared page must not be the one that the prompt needs.
    const auto end = static_cast<int64_t>(prompt.size()) + 1;
    if (auto room = model_->store().reserve(id, end); !room) return room;
    return model_->draft(
        {&last, 1},
        {.role = ops::Role::kPrefill, .source = DraftSource::kSlot, .cache_only = true});
  });
  if (!status) log_message(LogLevel::kWarning, "no drafts: " + status.error().message());
  return status.has_value();
}

/// Catches the layer up with the tokens that the turns absorbed, and drafts where text goes on and
/// `live` says that its next token is drawn. Whatever fails here costs drafts, never text.
void EngineLoop::propose(std::span<const Turn> turns, ops::Role role, bool live) {
  std::vector<const Turn*> kept;
  for (const Turn& turn : turns) {
    const RunningRequest& running = *turn.running;
    const bool needed = !running.ending || running.request.keep_state;
    if (running.depth > 0 && !running.done && needed) kept.push_back(&turn);
  }
  if (kept.empty()) return;
  choose_depths(kept, static_cast<int>(turns.size() - kept.size()));
  for (const Turn* turn : kept) {
    RunningRequest& running = *turn->running;
    const int left = running.max_new_tokens - running.usage.completion_tokens;
    running.next_depth = running.ending ? 0 : std::min(running.next_depth, left - 1);
  }
  if (live)
    for (const Turn* turn : kept) fit_depth(*turn->running);
  const int64_t first_repeats = model_->ops().first_repeats();
  const auto begin = RunningRequest::Clock::now();
  auto status = guarded([&]() -> Result<void> {
    if (auto caught_up = catch_up(kept, role, live); !caught_up) return caught_up;
    return live ? draft(kept) : Result<void>();
  });
  const double seconds = seconds_since(begin);
  for (const Turn& turn : turns) turn.running->usage.rounds.draft_seconds += seconds;
  if (status) {
    if (role == ops::Role::kDecode && model_->ops().first_repeats() == first_repeats)
      record_drafts(kept, seconds);
    return;
  }
  log_message(LogLevel::kWarning, "drafting ends: " + status.error().message());
  for (const Turn* turn : kept) {
    turn->running->depth = 0;
    turn->running->drafts.clear();
  }
}

/// Drafts of the next round: it draws one token more than it has drafts. Sequences that leave the
/// depth to the engine share one, so that a batch is as fast as it can be. Where that is 0, one
/// whose text is not yet known well drafts once a round for as long as its text may turn out to be
/// worth it; others leave the draft layer alone when it has not paid for a while.
void EngineLoop::choose_depths(std::span<const Turn* const> turns, int other_rows) {
  constexpr int kTrialDepth = 1, kMostIdleRounds = 4;
  std::vector<const AcceptanceRates*> expected;
  for (const Turn* turn : turns) {
    const RunningRequest& running = *turn->running;
    if (running.adaptive)
      expected.push_back(&running.acceptance);
    else
      other_rows += running.depth + 1;
  }
  const int most = model_->options().max_draft;
  const int best = policy_.best_depth(expected, other_rows, most);
  const bool try_on = best == 0 && trial_may_pay(expected, other_rows);
  for (const Turn* turn : turns) {
    RunningRequest& running = *turn->running;
    int wanted = running.depth;
    if (running.adaptive) {
      wanted = std::min(wanted, try_on && running.acceptance.on_trial() ? kTrialDepth : best);
      running.idle_rounds = wanted > 0 ? 0 : running.idle_rounds + 1;
      if (running.idle_rounds > kMostIdleRounds) running.depth = 0;
    }
    running.next_depth = wanted;
  }
}

/// Whether the sequences on trial would make drafting pay if all their drafts were accepted.
bool EngineLoop::trial_may_pay(std::span<const AcceptanceRates* const> expected,
                               int other_rows) const {
  const int most = model_->options().max_draft;
  std::vector<AcceptanceRates> best;
  for (const AcceptanceRates* rates : expected) best.push_back(rates->at_best(most));
  std::vector<const AcceptanceRates*> hoped;
  for (const AcceptanceRates& rates : best) hoped.push_back(&rates);
  return policy_.best_depth(hoped, other_rows, most) > 0;
}

/// No deeper than there are pages for the rows that the next round verifies.
void EngineLoop::fit_depth(RunningRequest& running) {
  if (running.next_depth == 0) return;
  SequenceStore& store = model_->store();
  const SequenceId id = running.sequence.id();
  const int64_t row = running.position + 1;
  if (guarded([&] { return store.reserve(id, row + running.next_depth); })) return;
  const auto room = std::max<int64_t>(store.capacity(id) - row, 0);
  running.next_depth = static_cast<int>(std::min<int64_t>(running.next_depth, room));
}

/// The same once more for what was drafted: another sequence may have needed the pages since.
void EngineLoop::fit_drafts(RunningRequest& running) {
  running.next_depth = static_cast<int>(running.drafts.size());
  fit_depth(running);
  running.drafts.resize(static_cast<size_t>(running.next_depth));
}

void EngineLoop::record_drafts(std::span<const Turn* const> turns, double seconds) {
  int depth = 0;
  for (const Turn* turn : turns) depth = std::max(depth, turn->running->next_depth);
  policy_.draft_phase(depth, seconds);
}

/// Keys and values of all absorbed rows but the live one of each sequence that will draft.
Result<void> EngineLoop::catch_up(std::span<const Turn* const> turns, ops::Role role, bool live) {
  std::vector<std::vector<int32_t>> next;
  std::vector<DraftRows> rows;
  for (const Turn* turn : turns) {
    const RunningRequest& running = *turn->running;
    std::vector<int32_t>& ids =
        next.emplace_back(turn->ids.begin() + 1, turn->ids.begin() + turn->kept);
    if (!live || running.next_depth == 0) ids.push_back(turn->next);
    rows.push_back({.sequence = running.sequence.id(),
                    .position = running.position - turn->kept,
                    .first_source = turn->first_row});
  }
  for (size_t at = 0; at < rows.size(); ++at) rows[at].next_ids = next[at];
  std::erase_if(rows, [](const DraftRows& each) { return each.next_ids.empty(); });
  if (!rows.empty()) {
    if (auto status = model_->draft(rows, {.role = role, .cache_only = true}); !status)
      return status;
  }
  for (const Turn* turn : turns)
    model_->set_draft_rows(turn->running->sequence.id(), turn->running->position);
  return {};
}

/// The live rows, then each row's draft with the layer's own output, as deep as each wants.
Result<void> EngineLoop::draft(std::span<const Turn* const> turns) {
  std::vector<Chain> chains;
  std::vector<DraftRows> rows;
  for (const Turn* turn : turns) {
    RunningRequest& running = *turn->running;
    const int depth = running.next_depth;
    if (depth == 0) continue;
    running.drafts.reserve(static_cast<size_t>(depth));
    chains.push_back({.running = &running, .sampler = running.sampler, .depth = depth});
    rows.push_back({.sequence = running.sequence.id(),
                    .position = running.position - 1,
                    .next_ids = {&running.pending, 1},
                    .first_source = turn->first_row + turn->kept - 1});
  }
  if (rows.empty()) return {};
  const bool share = model_->options().draft_share_selection;
  auto status =
      model_->draft(rows, {.selection = share ? DraftSelection::kKept : DraftSelection::kFresh});
  while (status) {
    draw_drafts(chains);
    rows.clear();
    std::vector<Chain> longer;
    for (size_t at = 0; at < chains.size(); ++at) {
      RunningRequest& running = *chains[at].running;
      const auto drafted = static_cast<int64_t>(running.drafts.size());
      if (drafted >= chains[at].depth) continue;
      rows.push_back({.sequence = running.sequence.id(),
                      .position = running.position - 1 + drafted,
                      .next_ids = {&running.drafts.back(), 1},
                      .first_source = static_cast<int>(at)});
      longer.push_back(std::move(chains[at]));
    }
    if (rows.empty()) return {};
    chains = std::move(longer);
    status = model_->draft(
        rows, {.source = DraftSource::kDraft,
               .selection = share ? DraftSelection::kContinued : DraftSelection::kFresh});
  }
  return status;
}

/// One draft for each chain, drawn as the token itself will be: from the layer's logits with the
/// request's settings and the uniform number of that position. Where the layer agrees with the
/// trunk the two draws agree, at any temperature.
void EngineLoop::draw_drafts(std::span<Chain> chains) {
  sample_rows_.clear();
  edits_.clear();
  for (Chain& chain : chains) {
    const RunningRequest& running = *chain.running;
    if (!running.drafts.empty()) chain.sampler.accept(running.drafts.back());
    const auto ahead = static_cast<int64_t>(running.drafts.size()) + 1;
    ops::SampleRow row = chain.sampler.row(running.position + ahead, edits_);
    row.top_logprobs = -1;
    sample_rows_.push_back(row);
  }
  sampled_.assign(sample_rows_.size(), {});
  model_->sample_drafts({.rows = sample_rows_, .edits = edits_, .results = sampled_});
  for (size_t at = 0; at < chains.size(); ++at) {
    if (sampled_[at].status == ops::SampleStatus::kDrawn)
      chains[at].running->drafts.push_back(sampled_[at].token);
    else
      chains[at].depth = 0;
  }
}

}  // namespace tessera
