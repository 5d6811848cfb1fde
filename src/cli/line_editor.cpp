// SPDX-License-Identifier: Apache-2.0
// libedit behind the two calls that the chat needs.
#include "cli/line_editor.h"

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <editline/readline.h>

#include "cli/terminal.h"

namespace tessera::cli {

LineEditor::LineEditor() {
  std::setlocale(LC_CTYPE, "");  // multi-byte characters move the cursor by one place
  rl_catch_signals = 0;          // Ctrl-C belongs to InterruptScope
  using_history();
}

std::optional<std::string> LineEditor::read(const char* prompt) {
  const std::unique_ptr<char, decltype(&std::free)> line(readline(prompt), &std::free);
  if (InterruptScope::take()) {
    std::fputs("\n", stdout);
    return std::string();
  }
  if (!line) {
    std::fputs("\n", stdout);
    return std::nullopt;
  }
  if (*line != '\0') add_history(line.get());
  return std::string(line.get());
}

}  // namespace tessera::cli
