// SPDX-License-Identifier: Apache-2.0
// Handing events over between the engine's thread and a client.
#include "runtime/generation.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tessera {

void Generation::Impl::push(Event event) {
  {
    const std::lock_guard lock(mutex);
    if (finished) return;
    if (event.kind == Event::Kind::kFinished) {
      finished = std::move(event);
    } else {
      events.push_back(std::move(event));
    }
  }
  ready.notify_all();
}

Event Generation::Impl::pop() {
  std::unique_lock lock(mutex);
  ready.wait(lock, [this] { return !events.empty() || finished.has_value(); });
  if (events.empty()) return *finished;
  Event event = std::move(events.front());
  events.pop_front();
  return event;
}

void DraftUsage::count(int num_proposed, int num_accepted) {
  ++rounds;
  const auto places = std::max(proposed.size(), static_cast<size_t>(num_proposed));
  proposed.resize(places);
  accepted.resize(places);
  for (int place = 0; place < num_proposed; ++place) {
    ++proposed[static_cast<size_t>(place)];
    accepted[static_cast<size_t>(place)] += place < num_accepted ? 1 : 0;
  }
}

RoundUsage& RoundUsage::operator+=(const RoundUsage& other) {
  rounds += other.rounds;
  tokens += other.tokens;
  verify_seconds += other.verify_seconds;
  draft_seconds += other.draft_seconds;
  return *this;
}

double DraftUsage::mean_length() const {
  const int taken = std::accumulate(accepted.begin(), accepted.end(), 0);
  return rounds == 0 ? 0.0 : 1.0 + static_cast<double>(taken) / rounds;
}

Generation::Generation() = default;
Generation::Generation(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Generation::Generation(Generation&&) noexcept = default;

Generation& Generation::operator=(Generation&& other) noexcept {
  if (this != &other) {
    if (impl_) impl_->cancelled = true;
    impl_ = std::move(other.impl_);
  }
  return *this;
}

Generation::~Generation() {
  if (impl_) impl_->cancelled = true;
}

Event Generation::next() {
  if (impl_) return impl_->pop();
  Event event;
  event.kind = Event::Kind::kFinished;
  event.reason = FinishReason::kError;
  event.error = Error{.code = Errc::kInvalidArgument, .what = "no request behind this generation"};
  return event;
}

void Generation::cancel() {
  if (impl_) impl_->cancelled = true;
}

}  // namespace tessera
