// SPDX-License-Identifier: Apache-2.0
// Lines from a terminal without an editing library: the terminal's own backspace is all there is.
#include "cli/line_editor.h"

#include <cstdio>

#include "cli/terminal.h"

namespace tessera::cli {
LineEditor::LineEditor() = default;

std::optional<std::string> LineEditor::read(const char* prompt) {
  std::fputs(prompt, stdout);
  std::fflush(stdout);
  std::string line;
  int byte = InterruptScope::read_byte();
  for (; byte >= 0 && byte != '\n'; byte = InterruptScope::read_byte())
    line.push_back(static_cast<char>(byte));
  if (byte >= 0) return line;
  std::fputs("\n", stdout);
  if (InterruptScope::take()) return std::string();
  return line.empty() ? std::nullopt : std::optional(line);
}

}  // namespace tessera::cli
