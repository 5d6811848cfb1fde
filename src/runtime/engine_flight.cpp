// SPDX-License-Identifier: Apache-2.0
// Decode rounds in flight: the backend runs them one after the other without the host, which
// launches the next round before it reads the last one (ops/round.h). Rows, tokens and lengths of
// the host lag behind by the rounds that it has not read; everything that is not a steady decode
// lands first.
#include <algorithm>
#include <utility>

#include "runtime/engine_loop.h"
#include "runtime/guarded.h"

namespace tessera {
namespace {

constexpr double kNanosecond = 1e-9;

bool drives_rounds(const EngineOptions& options, ops::Ops& ops) {
  switch (options.rounds) {
    case RoundDriver::kHost: return false;
    case RoundDriver::kDevice: return true;
    case RoundDriver::kAuto: break;
  }
  return ops.traits().rounds;
}

}  // namespace

/// The ids that end the text of a request.
std::vector<int32_t> EngineLoop::stops_of(const RunningRequest& running) const {
  std::vector<int32_t> stops = running.request.stop_ids;
  const std::vector<int32_t>& ends = model_->defaults().eos_token_ids;
  if (!running.request.ignore_eos) stops.insert(stops.end(), ends.begin(), ends.end());
  return stops;
}

/// Not when its draws depend on the text so far, or when more ends it than a round can look for.
bool EngineLoop::flies(const RunningRequest& running) const {
  return running.sampler.is_plain() && running.depth <= ops::kMaxRoundDrafts &&
         stops_of(running).size() <= ops::kMaxRoundStops;
}

/// What the rounds must know of a sequence.
ops::RoundSequence EngineLoop::round_settings(const RunningRequest& running) const {
  ops::RoundSequence settings;
  const std::vector<int32_t> stops = stops_of(running);
  std::copy(stops.begin(), stops.end(), settings.stops.begin());
  settings.num_stops = static_cast<int32_t>(stops.size());
  std::vector<ops::LogitEdit> none;
  settings.draw = running.sampler.row(running.position, none);
  if (model_->has_draft()) settings.draft_vocab = model_->draft_vocab(settings.draw.valid_vocab);
  settings.left = running.max_new_tokens - running.usage.completion_tokens;
  return settings;
}

/// Pages for the rows of a round that begins at most `lag` rows after the position, and for what it
/// drafts.
bool EngineLoop::reserve_round(const Turn& turn, int64_t lag) {
  const int64_t end = turn.running->position + lag + static_cast<int64_t>(turn.ids.size()) +
                      turn.running->next_depth;
  if (end > model_->max_context()) return false;
  SequenceStore& store = model_->store();
  return guarded([&] { return store.reserve(turn.running->sequence.id(), end); }).has_value();
}

/// Drafts of the round after the next one. Returns how many of the sequences run the draft layer.
int EngineLoop::choose_flight_depths(std::span<const Turn> turns) {
  std::vector<const Turn*> drafting;
  for (const Turn& turn : turns) {
    turn.running->next_depth = 0;
    if (turn.running->depth > 0) drafting.push_back(&turn);
  }
  const auto count = static_cast<int>(drafting.size());
  choose_depths(drafting, static_cast<int>(turns.size()) - count);
  return count;
}

/// Starts rounds of these sequences. False: the host must drive this one. `alone`: nothing else
/// wants the backend, so that rounds may follow each other.
bool EngineLoop::take_off(const std::vector<size_t>& indices, bool alone) {
  if (!drives_rounds(model_->options(), model_->ops())) return false;
  std::vector<Turn> turns;
  for (const size_t index : indices) {
    RunningRequest& running = running_[index];
    if (!flies(running)) return false;
    Turn turn{.running = &running, .ids = {running.pending}};
    turn.ids.insert(turn.ids.end(), running.drafts.begin(), running.drafts.end());
    turns.push_back(std::move(turn));
  }
  choose_flight_depths(turns);
  std::stable_sort(turns.begin(), turns.end(), [](const Turn& left, const Turn& right) {
    const auto order = [](const RunningRequest& running) {
      return std::pair(running.next_depth, running.depth > 0);
    };
    return order(*left.running) > order(*right.running);
  });
  SequenceStore& store = model_->store();
  std::vector<ops::RoundSequence> settings;
  for (const Turn& turn : turns) {
    const RunningRequest& running = *turn.running;
    const auto own_pages = [&] {
      return store.prepare_write(running.sequence.id(), running.position);
    };
    if (!reserve_round(turn, 0) || !guarded(own_pages)) return false;
    settings.push_back(round_settings(running));
  }
  flight_ = {.turns = std::move(turns), .alone = alone};
  describe_flight(settings);
  launch_round([&] {
    std::vector<SequenceRows> rows;
    for (const Turn& turn : flight_.turns)
      rows.push_back({.sequence = turn.running->sequence.id(), .ids = turn.ids});
    return model_->begin_round(rows, settings, flight_.shape);
  });
  if (!flight_.alone || flight_.error) land();
  return true;
}

/// Rows and shape of the round from its turns; drafts are in the turns from here on.
void EngineLoop::describe_flight(std::span<const ops::RoundSequence> settings) {
  RoundShape& shape = flight_.shape;
  shape.best_only = shape.best_drafts = true;
  shape.share_selection = model_->options().draft_share_selection;
  for (const ops::RoundSequence& each : settings) {
    shape.best_drafts &= each.draw.temperature == 0.0F;
    shape.best_only &= each.draw.temperature == 0.0F && each.draw.top_logprobs < 0;
  }
  flight_.steady = true;
  bool keeps_any = false;
  for (Turn& turn : flight_.turns) {
    RunningRequest& running = *turn.running;
    const auto rows = static_cast<int>(turn.ids.size());
    turn.first_row = flight_.rows;
    turn.depth = running.next_depth;
    running.drafts.clear();
    flight_.rows += rows;
    // The next round computes rows of a text that ends in this one. Pending, they leave no trace in
    // a state that is kept.
    const bool keeps = running.request.keep_state;
    shape.verify |= rows > 1 || (keeps && model_->has_draft());
    keeps_any |= keeps;
    flight_.steady &= turn.depth == rows - 1;
    if (running.depth > 0) {
      ++shape.lagging_spans;
      shape.lagging_rows += rows;
    }
    for (int place = 0; place < turn.depth; ++place) ++shape.drafting[static_cast<size_t>(place)];
  }
  flight_.alone &= shape.verify || !keeps_any;
}

/// A round that cannot be launched ends its requests.
void EngineLoop::launch_round(const std::function<Result<void>()>& launch) {
  const int64_t first_repeats = model_->ops().first_repeats();
  auto status = guarded(launch);
  if (!status) {
    flight_.error = std::move(status.error());
    return;
  }
  // What runs or is recorded for the first time says nothing about later rounds.
  flight_.timed[static_cast<size_t>(flight_.unread)] =
      model_->ops().first_repeats() == first_repeats;
  ++flight_.unread;
}

/// Whether the round in the air may be followed by one that the host has not prepared.
bool EngineLoop::may_repeat() {
  if (!flight_.steady || !flight_.alone || flight_.error) return false;
  if (choose_flight_depths(flight_.turns) != flight_.shape.lagging_spans) return false;
  return std::all_of(flight_.turns.begin(), flight_.turns.end(), [this](const Turn& turn) {
    const RunningRequest& running = *turn.running;
    const auto rows = static_cast<int64_t>(turn.ids.size());
    const int64_t end = running.position + 2 * rows + running.next_depth;
    return running.next_depth == turn.depth &&
           model_->store().keeps_table(running.sequence.id(), end) && reserve_round(turn, rows);
  });
}

/// The next round, then the report of the last one.
void EngineLoop::fly_on() {
  if (may_repeat()) {
    launch_round([this]() -> Result<void> {
      model_->repeat_round();
      return {};
    });
  }
  read_report();
  const bool ended = std::any_of(flight_.turns.begin(), flight_.turns.end(), [](const Turn& turn) {
    return turn.error || turn.running->ending;
  });
  if (ended || flight_.error || flight_.unread == 0) land();
}

/// The host may not change what rounds in the air work on: sequences come and go on the ground.
bool EngineLoop::must_land() {
  const bool cancelled =
      std::any_of(running_.begin(), running_.end(),
                  [](const RunningRequest& running) { return running.out->cancelled.load(); });
  const std::lock_guard lock(mutex_);
  return cancelled || stop_ || !queue_.empty();
}

void EngineLoop::land() {
  while (flight_.unread > 0) read_report();
  Flight landed = std::exchange(flight_, {});
  for (Turn& turn : landed.turns) {
    RunningRequest& running = *turn.running;
    if (landed.error && !running.ending) turn.error = landed.error;
    if (turn.error) {
      finish(running, FinishReason::kError, std::move(turn.error));
    } else if (running.ending) {
      finish(running, *running.ending);
    } else {
      running.drafts.assign(turn.ids.begin() + 1, turn.ids.end());
    }
  }
}

/// Takes over what the oldest round in the air did. Whatever fails, its report is no longer there.
void EngineLoop::read_report() {
  --flight_.unread;
  const auto status = guarded([this]() -> Result<void> {
    const ops::RoundReport report = model_->read_round();
    const bool timed = std::exchange(flight_.timed[0], flight_.timed[1]);
    RoundUsage round = count_times(report.times, timed);
    round.rounds = 1;
    for (const ops::RoundOutcome& outcome : report.outcomes) round.tokens += outcome.kept;
    for (size_t at = 0; at < flight_.turns.size(); ++at) {
      Turn& turn = flight_.turns[at];
      if (turn.error) continue;
      const auto rows = report.drawn.subspan(static_cast<size_t>(turn.first_row), turn.ids.size());
      auto taken = guarded([&] { return take_report(turn, report.outcomes[at], rows); });
      if (!taken) turn.error = std::move(taken.error());
      if (turn.kept > 0) turn.running->usage.rounds += round;
    }
    return {};
  });
  if (!status) flight_.error = status.error();
}

/// What one sequence did: its tokens go to the client, its rows become text.
Result<void> EngineLoop::take_report(Turn& turn, const ops::RoundOutcome& outcome,
                                     std::span<const ops::SampledToken> drawn) {
  RunningRequest& running = *turn.running;
  turn.kept = outcome.kept;
  const auto kept = static_cast<size_t>(outcome.kept);
  model_->take_round(running.sequence.id(), std::span<const int32_t>(turn.ids).first(kept));
  if (kept == 0) return {};
  const int64_t before = running.position;
  running.position += outcome.kept;
  count_drafts(turn);
  for (size_t row = 0; row < kept; ++row) {
    auto status = deliver(running, drawn[row], before + static_cast<int64_t>(row) + 1);
    if (!status) return status;
  }
  turn.ids = {running.pending};
  turn.ids.insert(turn.ids.end(), outcome.drafts.begin(), outcome.drafts.begin() + turn.depth);
  return {};
}

/// Rounds that follow each other tell what their halves cost.
RoundUsage EngineLoop::count_times(const ops::RoundTimes& times, bool timed) {
  const uint64_t begin = std::exchange(flight_.advanced, times.advanced);
  if (begin == 0) return {};
  const bool drafting = flight_.shape.lagging_spans > 0;
  RoundUsage round;
  round.verify_seconds = static_cast<double>(times.accepted - begin) * kNanosecond;
  if (drafting)
    round.draft_seconds = static_cast<double>(times.advanced - times.accepted) * kNanosecond;
  if (!timed) return round;
  policy_.trunk_launch(flight_.rows, round.verify_seconds);
  if (drafting) policy_.draft_phase(flight_.turns.front().depth, round.draft_seconds);
  return round;
}

}  // namespace tessera
