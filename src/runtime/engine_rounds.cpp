// SPDX-License-Identifier: Apache-2.0
// A round of the engine: decode rows of every sequence with their drafts, then prompt rows; what is
// drawn goes to the clients, and the draft layer catches up and proposes what the next round
// verifies.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/log.h"
#include "core/logit_math.h"
#include "runtime/engine_loop.h"
#include "runtime/guarded.h"

namespace tessera {
namespace {

constexpr int kScoreRows = 32;  // prompt rows whose logits are held at once

}  // namespace

void EngineLoop::run_round() {
  if (flight_.unread > 0) return fly_on();
  std::vector<RunningView> views;
  for (const RunningRequest& running : running_) views.push_back(running.view());
  const Round round = plan_round(views, model_->options().prefill_chunk);
  if (!round.decode.empty()) run_decode(round.decode, !round.prefill);
  if (!round.prefill) return;
  RunningRequest& running = running_[round.prefill->index];
  auto status = guarded([&] { return run_prefill(running, round.prefill->rows); });
  if (!status) finish(running, FinishReason::kError, std::move(status.error()));
  if (running.ending) finish(running, *running.ending);
}

Result<void> EngineLoop::run_prefill(RunningRequest& running, int rows) {
  const auto begin = static_cast<size_t>(running.position);
  const auto count = static_cast<size_t>(rows);
  const std::span<const int32_t> prompt(running.request.prompt);
  const SequenceRows work{.sequence = running.sequence.id(), .ids = prompt.subspan(begin, count)};
  const bool last_chunk = running.prompt_left() == rows;
  std::vector<int32_t> logit_rows;
  if (running.request.prompt_logprobs) {
    for (int row = 0; row < rows; ++row) logit_rows.push_back(row);
  } else if (last_chunk) {
    logit_rows.push_back(rows - 1);
  }
  auto status = claim_rows(running, running.position + rows);
  if (status) status = model_->run({&work, 1}, ops::Role::kPrefill, logit_rows);
  if (!status) return status;
  running.position += rows;

  if (running.request.prompt_logprobs) {
    status = score_prompt(running, begin, rows);
    if (!status) return status;
  }
  Event progress;
  progress.kind = Event::Kind::kPrefill;
  progress.prefilled = static_cast<int>(running.position);
  running.out->push(std::move(progress));
  Turn turn{.running = &running, .ids = {work.ids.begin(), work.ids.end()}, .kept = rows};
  if (last_chunk) {
    running.first_token = RunningRequest::Clock::now();
    running.usage.prefill_seconds = seconds_between(running.started, running.first_token);
    sample({&turn, 1}, static_cast<int>(logit_rows.size()) - 1, true);
    status = deliver(running, sampled_.front(), running.position);
    if (!status) return status;
    turn.next = running.pending;
  } else {
    turn.next = prompt[begin + count];
  }
  propose({&turn, 1}, ops::Role::kPrefill, last_chunk);
  return {};
}

/// Log-probabilities of the prompt tokens that follow rows begin .. begin + rows - 1.
Result<void> EngineLoop::score_prompt(RunningRequest& running, size_t begin, int rows) {
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  const std::vector<int32_t>& prompt = running.request.prompt;
  logits_.resize(vocab * kScoreRows);
  for (int first = 0; first < rows; first += kScoreRows) {
    const int count = std::min(kScoreRows, rows - first);
    model_->logits(first, count, logits_.data());
    for (int row = 0; row < count; ++row) {
      const size_t next = begin + static_cast<size_t>(first + row) + 1;
      if (next >= prompt.size()) return {};
      const std::span<const float> line(logits_.data() + static_cast<size_t>(row) * vocab, vocab);
      const double logprob = log_probability(line, prompt[next]);
      if (!std::isfinite(logprob))
        return fail({.code = Errc::kNumerics,
                     .what = "numerical failure",
                     .where = "log-probability of prompt token " + std::to_string(next),
                     .expected = "a finite number",
                     .found = std::to_string(logprob)});
      running.prompt_logprobs.push_back(static_cast<float>(logprob));
    }
  }
  return {};
}

/// Pages for rows of text up to `end`, of this sequence alone. Where the pool has none, pages that
/// only drafts asked for go back first: a text never ends because another one drafts.
Result<void> EngineLoop::claim_rows(RunningRequest& running, int64_t end) {
  SequenceStore& store = model_->store();
  const SequenceId id = running.sequence.id();
  const auto claim = [&] {
    return guarded([&]() -> Result<void> {
      if (auto status = store.reserve(id, end); !status) return status;
      return store.prepare_write(id, running.position);
    });
  };
  auto status = claim();
  if (!status && status.error().code == Errc::kOutOfMemory) {
    for (const RunningRequest& each : running_)
      store.trim(each.sequence.id(), std::max(each.position, each.claimed));
    status = claim();
  }
  if (status) running.claimed = end;
  return status;
}

/// Every sequence gets the page of its own row before any gets one for drafts; one that gets none
/// fails alone.
void EngineLoop::run_decode(const std::vector<size_t>& indices, bool alone) {
  if (take_off(indices, alone)) return;
  std::vector<Turn> turns;
  for (const size_t index : indices) {
    RunningRequest& running = running_[index];
    auto status = claim_rows(running, running.position + 1);
    if (status)
      turns.push_back({.running = &running, .ids = {running.pending}});
    else
      finish(running, FinishReason::kError, std::move(status.error()));
  }
  if (turns.empty()) return;
  int rows = 0;
  for (Turn& turn : turns) {
    RunningRequest& running = *turn.running;
    fit_drafts(running);
    turn.first_row = rows;
    turn.ids.insert(turn.ids.end(), running.drafts.begin(), running.drafts.end());
    running.drafts.clear();
    rows += static_cast<int>(turn.ids.size());
  }
  const bool verify = rows > static_cast<int>(turns.size());
  const auto status = guarded([&] { return launch_turns(turns, verify); });
  for (Turn& turn : turns) {
    Result<void> result = status;
    if (result) result = guarded([&] { return take(turn, verify); });
    if (!result) finish(*turn.running, FinishReason::kError, std::move(result.error()));
  }
  int delivered = 0;
  for (const Turn& turn : turns) delivered += turn.kept;
  for (const Turn& turn : turns) turn.running->usage.rounds.tokens += delivered;
  propose(turns, ops::Role::kDecode, true);
  for (const Turn& turn : turns)
    if (turn.running->ending) finish(*turn.running, *turn.running->ending);
}

/// All rows in one launch, a draw for each. Without a draft among them nothing is left pending.
Result<void> EngineLoop::launch_turns(std::span<const Turn> turns, bool verify) {
  std::vector<SequenceRows> work;
  std::vector<int32_t> logit_rows;
  for (const Turn& turn : turns) {
    work.push_back({.sequence = turn.running->sequence.id(), .ids = turn.ids});
    for (size_t row = 0; row < turn.ids.size(); ++row)
      logit_rows.push_back(static_cast<int32_t>(logit_rows.size()));
  }
  const int64_t first_repeats = model_->ops().first_repeats();
  const auto begin = RunningRequest::Clock::now();
  auto launched =
      verify ? model_->verify(work, logit_rows) : model_->run(work, ops::Role::kDecode, logit_rows);
  if (!launched) return launched;
  sample(turns, 0, false);
  const double seconds = seconds_since(begin);
  for (const Turn& turn : turns) {
    turn.running->usage.rounds.rounds += 1;
    turn.running->usage.rounds.verify_seconds += seconds;
  }
  if (model_->ops().first_repeats() == first_repeats)  // others say nothing about later rounds
    policy_.trunk_launch(static_cast<int>(logit_rows.size()), seconds);
  return {};
}

/// Draws the next token of every row, from entry `first_logits` of the last launch on; a drafted
/// row as if the drafts up to it were text. `last_only`: of a turn's last row, all of them
/// absorbed.
void EngineLoop::sample(std::span<const Turn> turns, int first_logits, bool last_only) {
  sample_rows_.clear();
  edits_.clear();
  for (const Turn& turn : turns) {
    const RunningRequest& running = *turn.running;
    if (last_only) {
      sample_rows_.push_back(running.sampler.row(running.position, edits_));
      continue;
    }
    Sampler sampler = running.sampler;
    for (size_t row = 0; row < turn.ids.size(); ++row) {
      if (row > 0) sampler.accept(turn.ids[row]);
      sample_rows_.push_back(sampler.row(running.position + 1 + static_cast<int64_t>(row), edits_));
    }
  }
  sampled_.assign(sample_rows_.size(), {});
  model_->sample(first_logits, {.rows = sample_rows_, .edits = edits_, .results = sampled_});
}

/// Delivers draws for as long as the row that follows was drafted right: exactly the tokens of
/// plain decoding, since every draw depends on its own row, position and seed alone.
Result<void> EngineLoop::take(Turn& turn, bool verify) {
  RunningRequest& running = *turn.running;
  const auto rows = static_cast<int>(turn.ids.size());
  for (bool goes_on = true; goes_on;) {
    const auto row = static_cast<size_t>(turn.first_row + turn.kept);
    ++turn.kept;
    auto status = deliver(running, sampled_[row], running.position + turn.kept);
    if (!status) return status;
    goes_on = !running.ending && turn.kept < rows &&
              turn.ids[static_cast<size_t>(turn.kept)] == running.pending;
  }
  turn.next = running.pending;
  if (verify)
    model_->accept({.sequence = running.sequence.id(), .ids = turn.ids}, turn.first_row, turn.kept);
  running.position += turn.kept;
  count_drafts(turn);
  return {};
}

/// What became of the drafts that a turn verified.
void EngineLoop::count_drafts(const Turn& turn) {
  const int proposed = static_cast<int>(turn.ids.size()) - 1;
  if (proposed == 0) return;
  RunningRequest& running = *turn.running;
  running.usage.drafts.count(proposed, turn.kept - 1);
  running.acceptance.count(proposed, turn.kept - 1);
  policy_.count(proposed, turn.kept - 1);
}

/// Makes the token of `outcome`, with index `position`, part of the text.
Result<void> EngineLoop::deliver(RunningRequest& running, const ops::SampledToken& outcome,
                                 int64_t position) {
  Result<Draw> draw = Sampler::draw(outcome, position);
  if (!draw) return fail(std::move(draw.error()));
  running.pending = draw->token;
  running.sampler.accept(draw->token);
  running.usage.completion_tokens += 1;
  Event event;
  event.kind = Event::Kind::kToken;
  event.token = draw->token;
  event.logprob = draw->logprob;
  event.top = std::move(draw->top);
  running.out->push(std::move(event));

  const auto contains = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), running.pending) != ids.end();
  };
  const bool end_of_text =
      !running.request.ignore_eos && contains(model_->defaults().eos_token_ids);
  if (end_of_text || contains(running.request.stop_ids)) {
    running.ending = FinishReason::kStop;
  } else if (running.usage.completion_tokens >= running.max_new_tokens) {
    running.ending = FinishReason::kLength;
  }
  return {};
}

}  // namespace tessera
