// SPDX-License-Identifier: Apache-2.0
// Admission, rounds and delivery run on the engine's thread; clients touch the queue only.
#include "runtime/engine_loop.h"

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/parallel.h"
#include "runtime/guarded.h"

namespace tessera {
EngineLoop::EngineLoop(std::unique_ptr<LoadedModel> model)
    : model_(std::move(model)), thread_([this] { work(); }) {}

EngineLoop::~EngineLoop() { stop(); }

std::unique_ptr<LoadedModel> EngineLoop::release() {
  stop();
  return std::move(model_);
}

void EngineLoop::stop() {
  if (!thread_.joinable()) return;
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
    if (flight_.unread > 0 && must_land()) land();
    if (flight_.unread == 0) {  // else requests have to stay where they are
      drop_cancelled();
      admit();
    }
    run_round();
    std::erase_if(running_, [](const RunningRequest& running) { return running.done; });
    publish_stats();
  }
  if (flight_.unread > 0) land();
  end_all({.code = Errc::kCancelled, .what = "the engine was shut down"});
}

bool EngineLoop::wait_for_work() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stop_ || !queue_.empty() || !running_.empty(); });
  return !stop_;
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
  const bool adaptive = request.draft == kDraftAuto;
  int depth = adaptive ? model_->options().max_draft : request.draft;
  // The first token is drawn from the prompt; one that is alone needs no draft layer, unless its
  // state goes on.
  if (!model_->has_draft() || (request.max_tokens == 1 && !request.keep_state)) depth = 0;
  if (depth > 0 && cached > 0 && !resume_drafting(*id, request.prompt)) depth = 0;
  return RunningRequest{
      .request = std::move(queued.request),
      .out = queued.out,
      .sequence = std::move(sequence),
      .sampler = std::move(*sampler),
      .depth = depth,
      .adaptive = adaptive,
      .acceptance = policy_.first_rates(),
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
    auto state =
        guarded([&]() -> Result<StateHandle> { return model_->snapshot(running.sequence.id()); });
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
