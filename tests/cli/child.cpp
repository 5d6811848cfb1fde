// SPDX-License-Identifier: Apache-2.0
// fork and exec with files for the streams, or forkpty.
#include "cli/child.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace tessera::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{60};
constexpr size_t kBufferBytes = 4096;
constexpr int kPollMilliseconds = 100;
constexpr int kExecFailed = 127;
constexpr int kSignalBase = 128;

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File temporary_file() { return {std::tmpfile(), &std::fclose}; }

std::string contents(std::FILE* file) {
  std::rewind(file);
  std::string text;
  std::array<char, kBufferBytes> buffer;
  for (size_t count; (count = std::fread(buffer.data(), 1, buffer.size(), file)) > 0;)
    text.append(buffer.data(), count);
  return text;
}

[[noreturn]] void exec_program(std::vector<std::string> words) {
  words.insert(words.begin(), TESSERA_PROGRAM);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(kExecFailed);
}

int wait_status(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : kSignalBase + WTERMSIG(status);
}

}  // namespace

Outcome run_program(const std::vector<std::string>& words, const std::string& input,
                    const std::string& folder) {
  const File in = temporary_file();
  const File out = temporary_file();
  const File err = temporary_file();
  std::fwrite(input.data(), 1, input.size(), in.get());
  std::rewind(in.get());
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(fileno(in.get()), STDIN_FILENO);
    dup2(fileno(out.get()), STDOUT_FILENO);
    dup2(fileno(err.get()), STDERR_FILENO);
    if (chdir(folder.c_str()) == 0) exec_program(words);
    _exit(kExecFailed);
  }
  const int status = wait_status(pid);
  return {.status = status, .out = contents(out.get()), .err = contents(err.get())};
}

Outcome run_program_into(const std::string& device, const std::vector<std::string>& words) {
  const File err = temporary_file();
  const pid_t pid = fork();
  if (pid == 0) {
    const int nothing = open("/dev/null", O_RDONLY);
    const int out = open(device.c_str(), O_WRONLY);
    if (nothing < 0 || out < 0) _exit(kExecFailed);
    dup2(nothing, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(fileno(err.get()), STDERR_FILENO);
    exec_program(words);
  }
  const int status = wait_status(pid);
  return {.status = status, .err = contents(err.get())};
}

TerminalChild::TerminalChild(const std::vector<std::string>& words) {
  winsize size{.ws_row = 40, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
  pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
  if (pid_ == 0) {
    setenv("TERM", "xterm", 1);
    exec_program(words);
  }
}

TerminalChild::~TerminalChild() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    wait_status(pid_);
  }
  close(terminal_);
}

void TerminalChild::type(const std::string& keys) const {
  const ssize_t written = write(terminal_, keys.data(), keys.size());
  if (written != static_cast<ssize_t>(keys.size())) std::abort();
}

bool TerminalChild::wait_for(const std::string& text) {
  const auto deadline = Clock::now() + kPatience;
  while (Clock::now() < deadline) {
    if (const size_t at = output_.find(text, seen_); at != std::string::npos) {
      seen_ = at + text.size();
      return true;
    }
    pollfd ready{.fd = terminal_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, kPollMilliseconds) <= 0) continue;
    std::array<char, kBufferBytes> buffer;
    const ssize_t got = read(terminal_, buffer.data(), buffer.size());
    if (got <= 0) return false;
    output_.append(buffer.data(), static_cast<size_t>(got));
  }
  return false;
}

bool TerminalChild::wait_for_prompt() {
  const auto deadline = Clock::now() + kPatience;
  if (!wait_for("> ")) return false;
  termios settings{};
  while (Clock::now() < deadline) {
    if (tcgetattr(terminal_, &settings) == 0 && (settings.c_lflag & ICANON) == 0) return true;
    poll(nullptr, 0, 1);
  }
  return false;
}

int TerminalChild::wait() {
  const auto deadline = Clock::now() + kPatience;
  siginfo_t ended{};
  while (ended.si_pid == 0 && Clock::now() < deadline) {
    waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT);
    if (ended.si_pid == 0) poll(nullptr, 0, kPollMilliseconds);
  }
  if (ended.si_pid == 0) kill(pid_, SIGKILL);
  const int status = wait_status(pid_);
  pid_ = -1;
  return status;
}

}  // namespace tessera::cli
