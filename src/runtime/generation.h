// SPDX-License-Identifier: Apache-2.0
// The queue between the engine's thread and the client that reads a generation.
#pragma once

#include <tessera/engine.h>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

namespace tessera {

struct Generation::Impl {
  std::mutex mutex;
  std::condition_variable ready;
  std::deque<Event> events;
  std::optional<Event> finished;
  std::atomic<bool> cancelled{false};

  /// Engine side. Events after the finishing one are dropped.
  void push(Event event);
  /// Client side.
  Event pop();
};

}  // namespace tessera
