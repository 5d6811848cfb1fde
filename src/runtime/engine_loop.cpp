// SPDX-License-Identifier: Apache-2.0
// Admission, rounds and delivery run on the engine's thread; clients touch the queue only.
#include "runtime/engine_loop.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <utility>

#include "core/log.h"
#include "core/logit_math.h"
#include "core/parallel.h"

namespace tessera {
namespace {

constexpr int kScoreRows = 32;  // prompt rows whose logits are held at once

double seconds_between(RunningRequest::Clock::time_point from,
                       RunningRequest::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

EngineLoop::EngineLoop(std::unique_ptr<LoadedModel> model)
    : model_(std::move(model)), thread_([this] { work(); }) {}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::shared_ptr<Generation::Impl> EngineLoop::enqueue(Request request) {
  auto out = std::make_shared<Generation::Impl>();
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(request), out});
    stats_.queued = static_cast<int>(queue_.size());
  }
  wake_.notify_all();
  return out;
}

EngineStats EngineLoop::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void EngineLoop::work() {
  set_num_threads(model_->options().threads);
  while (wait_for_work()) {
    drop_cancelled();
    admit();
    run_round();
    std::erase_if(running_, [](const RunningRequest& running) { return running.done; });
    publish_stats();
  }
  end_all({.code = Errc::kCancelled, .what = "the engine was shut down"});
}

bool EngineLoop::wait_for_work() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stop_ || !queue_.empty() || !running_.empty(); });
  return !stop_;
}

/// Runs `work` and turns an exception into an error: what the environment denies to one request
/// must not end the others or the engine.
template <class Work>
auto EngineLoop::guarded(Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return fail({.code = Errc::kOutOfMemory, .what = "out of memory"});
  } catch (const std::exception& exception) {
    return fail({.code = Errc::kInternal, .what = "round failed", .found = exception.what()});
  }
}

void EngineLoop::admit() {
  while (static_cast<int>(running_.size()) < model_->options().max_sequences) {
    Queued queued;
    {
      const std::lock_guard lock(mutex_);
      if (queue_.empty()) return;
      queued = std::move(queue_.front());
      queue_.pop_front();
    }
    Result<RunningRequest> running = guarded([&] { return start(queued); });
    if (running) {
      running_.push_back(std::move(*running));
    } else {
      refuse(queued, FinishReason::kError, std::move(running.error()));
    }
  }
}

/// The last event of a request that never ran.
void EngineLoop::refuse(const Queued& queued, FinishReason reason, std::optional<Error> error) {
  Event event;
  event.kind = Event::Kind::kFinished;
  event.reason = reason;
  event.usage.prompt_tokens = static_cast<int>(queued.request.prompt.size());
  event.error = std::move(error);
  queued.out->push(std::move(event));
}

Result<RunningRequest> EngineLoop::start(Queued& queued) {
  SequenceStore& store = model_->store();
  const Request& request = queued.request;
  Result<SequenceId> id =
      request.resume_from ? store.restore(*request.resume_from) : store.create();
  if (!id) return fail(std::move(id.error()));
  ScopedSequence sequence(store, *id);
  const int vocab = model_->config().vocab_size;
  const int valid = model_->options().valid_vocab > 0 ? model_->options().valid_vocab : vocab;
  Result<Sampler> sampler = Sampler::make(
      request.sampling,
      {.vocab_size = vocab, .valid_vocab = valid, .top_logprobs = request.top_logprobs},
      request.prompt);
  if (!sampler) return fail(std::move(sampler.error()));

  const auto prompt_tokens = static_cast<int>(request.prompt.size());
  const int room = model_->max_context() - prompt_tokens;
  const int64_t cached = store.length(*id);
  return RunningRequest{
      .request = std::move(queued.request),
      .out = queued.out,
      .sequence = std::move(sequence),
      .sampler = std::move(*sampler),
      .position = cached,
      .max_new_tokens = request.max_tokens > 0 ? request.max_tokens : room,
      .usage = {.prompt_tokens = prompt_tokens, .cached_tokens = static_cast<int>(cached)}};
}

void EngineLoop::drop_cancelled() {
  for (RunningRequest& running : running_)
    if (running.out->cancelled) finish(running, FinishReason::kCancelled);
  std::erase_if(running_, [](const RunningRequest& running) { return running.done; });
  const std::lock_guard lock(mutex_);
  std::erase_if(queue_, [](const Queued& queued) {
    if (!queued.out->cancelled) return false;
    refuse(queued, FinishReason::kCancelled);
    return true;
  });
}

void EngineLoop::run_round() {
  std::vector<RunningView> views;
  for (const RunningRequest& running : running_) views.push_back(running.view());
  const Round round = plan_round(views, model_->options().prefill_chunk);
  if (!round.decode.empty()) run_decode(round.decode);
  if (!round.prefill) return;
  RunningRequest& running = running_[round.prefill->index];
  auto status = guarded([&] { return run_prefill(running, round.prefill->rows); });
  if (!status) finish(running, FinishReason::kError, std::move(status.error()));
}

Result<void> EngineLoop::run_prefill(RunningRequest& running, int rows) {
  const auto begin = static_cast<size_t>(running.position);
  const SequenceRows work{
      .sequence = running.sequence.id(),
      .ids = std::span(running.request.prompt).subspan(begin, static_cast<size_t>(rows))};
  const bool last_chunk = running.prompt_left() == rows;
  std::vector<int32_t> logit_rows;
  if (running.request.prompt_logprobs) {
    for (int row = 0; row < rows; ++row) logit_rows.push_back(row);
  } else if (last_chunk) {
    logit_rows.push_back(rows - 1);
  }
  auto status = model_->run({&work, 1}, ops::Role::kPrefill, logit_rows);
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
  if (!last_chunk) return {};
  running.first_token = RunningRequest::Clock::now();
  running.usage.prefill_seconds = seconds_between(running.started, running.first_token);
  RunningRequest* const row = &running;
  sample({&row, 1}, static_cast<int>(logit_rows.size()) - 1);
  return deliver(running, sampled_.front());
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

/// Pages of the next row; a sequence that gets none fails alone.
bool EngineLoop::reserve_row(RunningRequest& running) {
  SequenceStore& store = model_->store();
  const SequenceId id = running.sequence.id();
  auto status = guarded([&] { return store.reserve(id, running.position + 1); });
  if (status) status = guarded([&] { return store.prepare_write(id, running.position); });
  if (!status) finish(running, FinishReason::kError, std::move(status.error()));
  return !running.done;
}

void EngineLoop::run_decode(const std::vector<size_t>& indices) {
  std::vector<SequenceRows> work;
  std::vector<RunningRequest*> rows;
  std::vector<int32_t> logit_rows;
  for (const size_t index : indices) {
    RunningRequest& running = running_[index];
    if (!reserve_row(running)) continue;
    work.push_back({.sequence = running.sequence.id(), .ids = {&running.pending, 1}});
    logit_rows.push_back(static_cast<int32_t>(rows.size()));
    rows.push_back(&running);
  }
  if (rows.empty()) return;
  auto status = guarded([&]() -> Result<void> {
    if (auto launched = model_->run(work, ops::Role::kDecode, logit_rows); !launched)
      return launched;
    for (RunningRequest* running : rows) running->position += 1;
    sample(rows, 0);
    return {};
  });
  for (size_t row = 0; row < rows.size(); ++row) {
    RunningRequest& running = *rows[row];
    Result<void> result = status;
    if (result) result = guarded([&] { return deliver(running, sampled_[row]); });
    if (!result) finish(running, FinishReason::kError, std::move(result.error()));
  }
}

/// Draws the next token of every row, from entry `first_logits` of the last launch on.
void EngineLoop::sample(std::span<RunningRequest* const> rows, int first_logits) {
  sample_rows_.clear();
  edits_.clear();
  for (const RunningRequest* running : rows)
    sample_rows_.push_back(running->sampler.row(running->position, edits_));
  sampled_.assign(rows.size(), {});
  model_->sample(first_logits, {.rows = sample_rows_, .edits = edits_, .results = sampled_});
}

Result<void> EngineLoop::deliver(RunningRequest& running, const ops::SampledToken& outcome) {
  Result<Draw> draw = Sampler::draw(outcome, running.position);
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
    finish(running, FinishReason::kStop);
  } else if (running.usage.completion_tokens >= running.max_new_tokens) {
    finish(running, FinishReason::kLength);
  }
  return {};
}

/// The last event of a running request. A state that cannot be kept is left out, with a warning.
void EngineLoop::finish(RunningRequest& running, FinishReason reason, std::optional<Error> error) {
  if (running.done) return;
  Event event;
  event.kind = Event::Kind::kFinished;
  event.reason = reason;
  event.usage = running.usage;
  if (running.usage.completion_tokens > 0)
    event.usage.decode_seconds = seconds_between(running.first_token, RunningRequest::Clock::now());
  event.prompt_logprobs = std::move(running.prompt_logprobs);
  if (error) {
    log_message(LogLevel::kError, "request failed: " + error->message());
    event.error = std::move(error);
  } else if (running.request.keep_state) {
    auto state = guarded(
        [&]() -> Result<StateHandle> { return model_->store().snapshot(running.sequence.id()); });
    if (state) {
      event.state = std::move(*state);
    } else {
      log_message(LogLevel::kWarning, "state not kept: " + state.error().message());
    }
  }
  {
    // Before the last event: who has seen it finds the request counted.
    const std::lock_guard lock(mutex_);
    stats_.prompt_tokens += static_cast<uint64_t>(running.usage.prompt_tokens);
    stats_.generated_tokens += static_cast<uint64_t>(running.usage.completion_tokens);
    if (reason == FinishReason::kError) ++stats_.failed_requests;
  }
  running.done = true;
  running.out->push(std::move(event));
}

/// Nobody may wait for ever: every request, running or queued, gets its last event.
void EngineLoop::end_all(const Error& error) {
  for (RunningRequest& running : running_) finish(running, FinishReason::kError, error);
  running_.clear();
  const std::lock_guard lock(mutex_);
  for (const Queued& queued : queue_) refuse(queued, FinishReason::kError, error);
  queue_.clear();
}

void EngineLoop::publish_stats() {
  const PagePool& pool = model_->store().pool();
  const std::lock_guard lock(mutex_);
  stats_.running = static_cast<int>(running_.size());
  stats_.queued = static_cast<int>(queue_.size());
  stats_.pages_used = static_cast<uint64_t>(pool.used());
  stats_.pages_total = static_cast<uint64_t>(pool.capacity());
}

}  // namespace tessera
