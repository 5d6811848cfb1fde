// SPDX-License-Identifier: Apache-2.0
// Lines from a terminal with editing keys and a history in memory.
#pragma once

#include <optional>
#include <string>

namespace tessera::cli {

/// At most one may be alive: the library underneath is a process-wide singleton.
class LineEditor {
 public:
  LineEditor();

  /// The next line without its end; empty after Ctrl-C, nothing at the end of the input.
  std::optional<std::string> read(const char* prompt);
};

}  // namespace tessera::cli
