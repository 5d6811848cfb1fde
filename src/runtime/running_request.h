// SPDX-License-Identifier: Apache-2.0
// A request that holds a sequence: where it is in its prompt, what it has generated.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/draft_policy.h"
#include "runtime/generation.h"
#include "runtime/sampler.h"
#include "runtime/scheduler.h"
#include "runtime/scoped_sequence.h"

namespace tessera {

struct RunningRequest {
  using Clock = std::chrono::steady_clock;

  Request request;
  std::shared_ptr<Generation::Impl> out;
  ScopedSequence sequence;
  Sampler sampler;
  int depth = 0;          // drafts a round at most; 0: the draft layer is not used
  bool adaptive = false;  // `depth` is the most, and it may fall to 0
  AcceptanceRates acceptance{};
  int next_depth = 0;             // of the round that is being drafted
  int idle_rounds = 0;            // in a row in which drafting did not promise to pay
  std::vector<int32_t> drafts{};  // what the next round verifies after `pending`
  int64_t position = 0;           // tokens absorbed
  int64_t claimed = 0;            // positions that rows of text, not drafts, have pages for
  int32_t pending = -1;           // sampled, not yet absorbed
  int max_new_tokens = 0;
  Usage usage{};
  std::vector<float> prompt_logprobs{};
  Clock::time_point started = Clock::now();
  Clock::time_point first_token{};
  std::optional<FinishReason> ending{};  // the text has ended, the last event is still to come
  bool done = false;

  int64_t prompt_left() const { return std::max<int64_t>(usage.prompt_tokens - position, 0); }
  RunningView view() const { return {.position = position, .prompt_left = prompt_left()}; }
};

inline double seconds_between(RunningRequest::Clock::time_point from,
                              RunningRequest::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}
inline double seconds_since(RunningRequest::Clock::time_point from) {
  return seconds_between(from, RunningRequest::Clock::now());
}

}  // namespace tessera
