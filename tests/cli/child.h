// SPDX-License-Identifier: Apache-2.0
// Starts the program under test, on pipes or on a terminal of its own.
#pragma once

#include <sys/types.h>
#include <string>
#include <vector>

namespace tessera::cli {

struct Outcome {
  int status = -1;  // exit status, or 128 + signal
  std::string out{};
  std::string err{};
};

/// Runs `tessera WORDS...` in `folder` with `input` as standard input until it ends.
Outcome run_program(const std::vector<std::string>& words, const std::string& input = "",
                    const std::string& folder = ".");

/// The same with `device` as standard output, opened for writing only.
Outcome run_program_into(const std::string& device, const std::vector<std::string>& words);

/// The program on a pseudo-terminal: both of its output streams come back mixed.
class TerminalChild {
 public:
  explicit TerminalChild(const std::vector<std::string>& words);
  ~TerminalChild();
  TerminalChild(const TerminalChild&) = delete;
  TerminalChild& operator=(const TerminalChild&) = delete;

  void type(const std::string& keys) const;
  /// Reads until `text` appears after what earlier calls have found; false after a minute.
  bool wait_for(const std::string& text);
  /// Waits for the prompt and for the line editor behind it: the editor shows the prompt first and
  /// then takes the terminal over, and a Ctrl-D in between would be lost.
  bool wait_for_prompt();
  /// Waits for the end, a minute at most; the exit status as in Outcome.
  int wait();
  const std::string& output() const { return output_; }

 private:
  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string output_{};
  size_t seen_ = 0;  // end of the last text that was waited for
};

}  // namespace tessera::cli
