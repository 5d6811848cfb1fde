// SPDX-License-Identifier: Apache-2.0
// The process-wide log sink; without one the library is silent.
#include "core/log.h"

#include <memory>
#include <mutex>

namespace tessera {
namespace {

struct SinkHolder {
  std::mutex mutex;
  LogSink sink;
};

SinkHolder& holder() {
  static SinkHolder instance;
  return instance;
}

}  // namespace

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(holder().mutex);
  holder().sink = std::move(sink);
}

void log_message(LogLevel level, std::string_view text) {
  const std::lock_guard lock(holder().mutex);
  if (holder().sink) holder().sink(level, text);
}

}  // namespace tessera
