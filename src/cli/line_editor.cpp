// SPDX-License-Identifier: Apache-2.0
// libedit behind the two calls that the chat needs.
#include "cli/line_editor.h"

#include <langinfo.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <memory>
#include <string_view>

#include <editline/readline.h>

#include "cli/terminal.h"

namespace tessera::cli {
namespace {

/// The next character for the line editor. libedit's own read misses a Ctrl-C that comes just
/// before.
int read_symbol(FILE* /*stream*/) {
  std::mbstate_t state{};
  for (;;) {
    const int byte = InterruptScope::read_byte();
    if (byte < 0) return -1;
    const char unit = static_cast<char>(byte);
    wchar_t symbol = 0;
    const size_t used = std::mbrtowc(&symbol, &unit, 1, &state);
    if (used == static_cast<size_t>(-2)) continue;  // more bytes follow
    return used == static_cast<size_t>(-1) ? byte : static_cast<int>(symbol);
  }
}

}  // namespace

LineEditor::LineEditor() {
  // Multi-byte characters move the cursor by one place; terminals speak UTF-8 even where the
  // environment names no locale.
  std::setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
  rl_catch_signals = 0;  // Ctrl-C belongs to InterruptScope
  rl_getc_function = read_symbol;
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
