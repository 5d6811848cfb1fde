// SPDX-License-Identifier: Apache-2.0
// Handing events over between the engine's thread and a client.
#include "runtime/generation.h"

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
