// SPDX-License-Identifier: Apache-2.0
// The engine's thread: admits requests in order of arrival and runs rounds until told to stop.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/generation.h"
#include "runtime/loaded_model.h"
#include "runtime/running_request.h"

namespace tessera {

class EngineLoop {
 public:
  explicit EngineLoop(std::unique_ptr<LoadedModel> model);
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  /// `request` has been validated against the model.
  std::shared_ptr<Generation::Impl> enqueue(Request request);
  EngineStats stats() const;
  const LoadedModel& model() const { return *model_; }

 private:
  struct Queued {
    Request request;
    std::shared_ptr<Generation::Impl> out;
  };

  void work();
  bool wait_for_work();
  void admit();
  Result<RunningRequest> start(Queued& queued);
  void drop_cancelled();
  void run_round();
  Result<void> run_prefill(RunningRequest& running, int rows);
  bool reserve_row(RunningRequest& running);
  void run_decode(const std::vector<size_t>& indices);
  Result<void> score_prompt(RunningRequest& running, size_t begin, int rows);
  void sample(std::span<RunningRequest* const> rows, int first_logits);
  Result<void> deliver(RunningRequest& running, const ops::SampledToken& outcome);
  template <class Work>
  static auto guarded(Work&& work) -> decltype(work());
  static void refuse(const Queued& queued, FinishReason reason, std::optional<Error> error = {});
  void finish(RunningRequest& running, FinishReason reason, std::optional<Error> error = {});
  void end_all(const Error& error);
  void publish_stats();

  std::unique_ptr<LoadedModel> model_;
  std::vector<RunningRequest> running_{};
  std::vector<float> logits_{};
  // Of the launch that is sampled.
  std::vector<ops::SampleRow> sample_rows_{};
  std::vector<ops::LogitEdit> edits_{};
  std::vector<ops::SampledToken> sampled_{};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Queued> queue_{};
  EngineStats stats_{};
  bool stop_ = false;

  std::thread thread_;  // last: starts when everything else is ready
};

}  // namespace tessera
