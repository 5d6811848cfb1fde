// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine_loop.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/log.h"
#include "core/parallel.h"
#include "runtime/logit_math.h"

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
    // Out of memory or a broken environment fails the requests it hit; the engine lives on.
    try {
      admit();
      drop_cancelled();
      run_round();
    } catch (const std::exception& exception) {
      fail_all({.code = Errc::kInternal, .what = "round failed", .found = exception.what()});
    }
    std::erase_if(running_, [](const RunningRequest& running) { return running.done; });
    publish_stats();
  }
  fail_all({.code = Errc::kCancelled, .what = "the engine was shut down"});
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
    Result<RunningRequest> running = start(queued);
    if (running) {
      running_.push_back(std::move(*running));
    } else {
      Event event;
      event.kind = Event::Kind::kFinished;
      event.reason = FinishReason::kError;
      event.error = std::move(running.error());
      queued.out->push(std::move(event));
    }
  }
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
}

void EngineLoop::run_round() {
  std::vector<RunningView> views;
  for (const RunningRequest& running : running_) views.push_back(running.view());
  const Round round = plan_round(views, model_->options().prefill_chunk);
  if (!round.decode.empty()) run_decode(round.decode);
  if (round.prefill) run_prefill(running_[round.prefill->index], round.prefill->rows);
}

void EngineLoop::run_prefill(RunningRequest& running, int rows) {
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
  if (auto status = model_->run({&work, 1}, ops::Role::kPrefill, logit_rows); !status)
    return finish(running, FinishReason::kError, std::move(status.error()));
  running.position += rows;

  if (running.request.prompt_logprobs) score_prompt(running, begin, rows);
  Event progress;
  progress.kind = Event::Kind::kPrefill;
  progress.prefilled = static_cast<int>(running.position);
  running.out->push(std::move(progress));
  if (!last_chunk) return;
  running.first_token = RunningRequest::Clock::now();
  running.usage.prefill_seconds = seconds_between(running.started, running.first_token);
  logits_.resize(static_cast<size_t>(model_->config().vocab_size));
  model_->logits(static_cast<int>(logit_rows.size()) - 1, 1, logits_.data());
  sample(running, logits_);
}

/// Log-probabilities of the prompt tokens that follow rows begin .. begin + rows - 1.
void EngineLoop::score_prompt(RunningRequest& running, size_t begin, int rows) {
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  const std::vector<int32_t>& prompt = running.request.prompt;
  logits_.resize(vocab * kScoreRows);
  for (int first = 0; first < rows; first += kScoreRows) {
    const int count = std::min(kScoreRows, rows - first);
    model_->logits(first, count, logits_.data());
    for (int row = 0; row < count; ++row) {
      const size_t next = begin + static_cast<size_t>(first + row) + 1;
      if (next >= prompt.size()) return;
      const std::span<const float> line(logits_.data() + static_cast<size_t>(row) * vocab, vocab);
      running.prompt_logprobs.push_back(static_cast<float>(log_probability(line, prompt[next])));
    }
  }
}

void EngineLoop::run_decode(const std::vector<size_t>& indices) {
  std::vector<SequenceRows> work;
  std::vector<int32_t> logit_rows;
  for (const size_t index : indices) {
    RunningRequest& running = running_[index];
    work.push_back({.sequence = running.sequence.id(), .ids = {&running.pending, 1}});
    logit_rows.push_back(static_cast<int32_t>(logit_rows.size()));
  }
  if (auto status = model_->run(work, ops::Role::kDecode, logit_rows); !status) {
    for (const size_t index : indices)
      finish(running_[index], FinishReason::kError, status.error());
    return;
  }
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  logits_.resize(vocab * indices.size());
  model_->logits(0, static_cast<int>(indices.size()), logits_.data());
  for (size_t row = 0; row < indices.size(); ++row) {
    RunningRequest& running = running_[indices[row]];
    running.position += 1;
    sample(running, {logits_.data() + row * vocab, vocab});
  }
}

void EngineLoop::sample(RunningRequest& running, std::span<const float> logits) {
  Result<Draw> draw = running.sampler.sample(logits, running.position);
  if (!draw) return finish(running, FinishReason::kError, std::move(draw.error()));
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
}

void EngineLoop::finish(RunningRequest& running, FinishReason reason, std::optional<Error> error) {
  if (running.done) return;
  running.done = true;
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
    event.state = model_->store().snapshot(running.sequence.id());
  }
  {
    // Before the last event: who has seen it finds the request counted.
    const std::lock_guard lock(mutex_);
    stats_.prompt_tokens += static_cast<uint64_t>(running.usage.prompt_tokens);
    stats_.generated_tokens += static_cast<uint64_t>(running.usage.completion_tokens);
    if (reason == FinishReason::kError) ++stats_.failed_requests;
  }
  running.out->push(std::move(event));
}

void EngineLoop::fail_all(const Error& error) {
  for (RunningRequest& running : running_) finish(running, FinishReason::kError, error);
  running_.clear();
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
