// SPDX-License-Identifier: Apache-2.0
// What the commands do with a terminal: progress lines, Ctrl-C, messages.
#pragma once

#include <tessera/error.h>
#include <chrono>
#include <csignal>
#include <string>
#include <string_view>

namespace tessera::cli {

/// "tessera: ..." on standard error; returns the exit status of a failure.
int report_error(const Error& error);

/// Warnings and errors of the library go to standard error; everything when `verbose`.
void install_log_sink(bool verbose);

/// Standard output, flushed at once: answers appear as they are made. False when it could not be
/// written; end_output() reports that.
bool print_text(std::string_view text);
bool print_line(std::string_view text);
/// Writes what is left in the buffer; true when everything so far has arrived.
bool flush_output();
/// The last step of the program: `status`, or a message and the status of a failure when standard
/// output could not be written.
int end_output(int status);

/// One line on standard error that is redrawn in place and erased at the end. Silent when standard
/// error is not a terminal, and for work that ends at once.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(double fraction);
  void clear();

 private:
  std::string label_;
  std::chrono::steady_clock::time_point start_;
  int shown_percent_ = -1;
  bool visible_ = false;
  bool on_terminal_;
};

/// While alive, Ctrl-C sets a flag instead of ending the program. Not nested.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  /// True once after each Ctrl-C.
  static bool take();
  static bool pending();
  /// Becomes readable with Ctrl-C, so that whoever waits for keys wakes whatever thread got the
  /// signal and however early it came.
  static int wake_fd();
  /// One byte of standard input, -1 at its end or with Ctrl-C.
  static int read_byte();

 private:
  struct sigaction previous_{};
};

}  // namespace tessera::cli
