// SPDX-License-Identifier: Apache-2.0
// The engine's thread: admits requests in order of arrival and runs rounds until told to stop.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/draft_policy.h"
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
  /// Ends the loop, as the destructor does, and hands its model back; nothing else may follow.
  std::unique_ptr<LoadedModel> release();

 private:
  struct Queued {
    Request request;
    std::shared_ptr<Generation::Impl> out;
  };

  /// The rows of a sequence in a launch and what became of them.
  struct Turn {
    RunningRequest* running = nullptr;
    std::vector<int32_t> ids{};  // of a decode round: the pending token, then its drafts
    int first_row = 0;           // in the launch
    int kept = 0;                // rows that are text
    int32_t next = -1;           // the token after them
    int depth = 0;               // drafts that a round in flight makes for the next one
    std::optional<Error> error{};
  };
  /// Rounds that run without the host, and what it knows of them: that of the oldest unread one.
  struct Flight {
    std::vector<Turn> turns{};  // in the order of the spans
    RoundShape shape{};
    int rows = 0;
    int unread = 0;                // rounds, at most two
    bool alone = false;            // nothing else wants the backend
    bool steady = false;           // the next round has the same rows
    std::array<bool, 2> timed{};   // of the unread rounds: steps that had been recorded before
    uint64_t advanced = 0;         // RoundTimes of the round that was read last
    std::optional<Error> error{};  // ends all of them
  };
  /// A sequence whose next tokens are being drafted.
  struct Chain {
    RunningRequest* running = nullptr;
    Sampler sampler;  // as if the drafts so far were text
    int depth = 0;
  };

  void stop();
  void work();
  bool wait_for_work();
  void admit();
  Result<RunningRequest> start(Queued& queued);
  void drop_cancelled();
  void run_round();
  Result<void> run_prefill(RunningRequest& running, int rows);
  void run_decode(const std::vector<size_t>& indices, bool alone);
  Result<void> claim_rows(RunningRequest& running, int64_t end);
  void fit_drafts(RunningRequest& running);
  void fit_depth(RunningRequest& running);
  Result<void> score_prompt(RunningRequest& running, size_t begin, int rows);
  Result<void> launch_turns(std::span<const Turn> turns, bool verify);
  void sample(std::span<const Turn> turns, int first_logits, bool last_only);
  Result<void> take(Turn& turn, bool verify);
  Result<void> deliver(RunningRequest& running, const ops::SampledToken& outcome, int64_t position);
  bool resume_drafting(SequenceId id, std::span<const int32_t> prompt);
  void propose(std::span<const Turn> turns, ops::Role role, bool live);
  void count_drafts(const Turn& turn);
  std::vector<int32_t> stops_of(const RunningRequest& running) const;
  bool flies(const RunningRequest& running) const;
  ops::RoundSequence round_settings(const RunningRequest& running) const;
  int choose_flight_depths(std::span<const Turn> turns);
  bool reserve_round(const Turn& turn, int64_t lag);
  bool take_off(const std::vector<size_t>& indices, bool alone);
  void describe_flight(std::span<const ops::RoundSequence> settings);
  void launch_round(const std::function<Result<void>()>& launch);
  bool may_repeat();
  void fly_on();
  bool must_land();
  void land();
  void read_report();
  Result<void> take_report(Turn& turn, const ops::RoundOutcome& outcome,
                           std::span<const ops::SampledToken> drawn);
  RoundUsage count_times(const ops::RoundTimes& times, bool timed);
  void choose_depths(std::span<const Turn* const> turns, int other_rows);
  bool trial_may_pay(std::span<const AcceptanceRates* const> expected, int other_rows) const;
  Result<void> catch_up(std::span<const Turn* const> turns, ops::Role role, bool live);
  Result<void> draft(std::span<const Turn* const> turns);
  void record_drafts(std::span<const Turn* const> turns, double seconds);
  void draw_drafts(std::span<Chain> chains);
  static void refuse(const Queued& queued, FinishReason reason, std::optional<Error> error = {});
  void finish(RunningRequest& running, FinishReason reason, std::optional<Error> error = {});
  void end_all(const Error& error);
  void publish_stats();

  std::unique_ptr<LoadedModel> model_;
  std::vector<RunningRequest> running_{};
  DraftPolicy policy_{};
  Flight flight_{};
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
