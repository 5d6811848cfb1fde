// SPDX-License-Identifier: Apache-2.0
// The seam for messages: the library never prints, it hands lines to whatever sink a client
// installed.
#pragma once

#include <functional>
#include <string_view>

namespace tessera {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Replaces the process-wide sink; an empty function silences the library. Thread-safe. The sink
/// is called from any thread, one call at a time, and must not call back into the library.
void set_log_sink(LogSink sink);
void log_message(LogLevel level, std::string_view text);

}  // namespace tessera
