// SPDX-License-Identifier: Apache-2.0
// Progress lines, Ctrl-C and messages, for terminals and pipes.
#include "cli/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <tessera/log.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "cli/options.h"

namespace tessera::cli {
namespace {

constexpr int kBarCells = 30;
constexpr std::chrono::milliseconds kQuietTime{300};

std::atomic<bool> interrupted{false};
std::atomic<int> wake_writer{-1};
int wake_reader = -1;
int output_errno = 0;  // why standard output failed; the stream itself forgets it
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

/// A second Ctrl-C before anyone has looked at the first one ends the program.
void on_interrupt(int /*signal*/) {
  if (interrupted.exchange(true)) _exit(kExitInterrupted);
  const char byte = 0;
  const int code = errno;  // the interrupted code may be about to read it
  // A full pipe wakes its reader as well as another byte would.
  static_cast<void>(!write(wake_writer, &byte, 1));
  errno = code;
}

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
  }
  return "log";
}

}  // namespace

int report_error(const Error& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "tessera: %s\n", error.message().c_str());
  return kExitError;
}

void install_log_sink(bool verbose) {
  const LogLevel lowest = verbose ? LogLevel::kDebug : LogLevel::kWarning;
  set_log_sink([lowest](LogLevel level, std::string_view text) {
    if (level < lowest) return;
    std::fprintf(stderr, "tessera: %s: %.*s\n", level_name(level), static_cast<int>(text.size()),
                 text.data());
  });
}

bool print_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  return flush_output();
}

bool print_line(std::string_view text) { return print_text(std::string(text) + "\n"); }

bool flush_output() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (errno != 0) output_errno = errno;
  return flushed && std::ferror(stdout) == 0;
}

int end_output(int status) {
  if (flush_output()) return status;
  return report_error({.code = Errc::kNotFound,
                       .what = "cannot write",
                       .where = "standard output",
                       .found = output_errno != 0 ? std::strerror(output_errno) : ""});
}

Progress::Progress(std::string label)
    : label_(std::move(label)),
      start_(std::chrono::steady_clock::now()),
      on_terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::update(double fraction) {
  if (!on_terminal_ || std::chrono::steady_clock::now() - start_ < kQuietTime) return;
  const int percent = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * 100.0));
  if (percent == shown_percent_) return;
  shown_percent_ = percent;
  visible_ = true;
  const auto cells = static_cast<size_t>(percent * kBarCells / 100);
  const std::string bar = std::string(cells, '=') + std::string(kBarCells - cells, ' ');
  std::fprintf(stderr, "\r%s [%s] %3d%%", label_.c_str(), bar.c_str(), percent);
  std::fflush(stderr);
}

void Progress::clear() {
  if (!visible_) return;
  visible_ = false;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

InterruptScope::InterruptScope() {
  interrupted = false;
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0) {
    wake_reader = ends[0];
    wake_writer = ends[1];
  }
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_);
}

InterruptScope::~InterruptScope() {
  sigaction(SIGINT, &previous_, nullptr);
  close(wake_writer.exchange(-1));
  close(std::exchange(wake_reader, -1));
}

bool InterruptScope::pending() { return interrupted; }
int InterruptScope::wake_fd() { return wake_reader; }

int InterruptScope::read_byte() {
  pollfd sources[] = {{STDIN_FILENO, POLLIN, 0}, {wake_fd(), POLLIN, 0}};
  while (!pending()) {
    if (poll(sources, std::size(sources), -1) < 0 && errno != EINTR) return -1;
    if (pending() || sources[0].revents == 0) continue;
    unsigned char byte = 0;
    const ssize_t got = read(STDIN_FILENO, &byte, 1);
    if (got == 1) return byte;
    if (got == 0 || errno != EINTR) return -1;
  }
  return -1;
}

bool InterruptScope::take() {
  char byte = 0;
  while (read(wake_reader, &byte, 1) == 1) {
  }
  return interrupted.exchange(false);
}

}  // namespace tessera::cli
