// SPDX-License-Identifier: Apache-2.0
// The `tessera` program: picks the command and keeps exceptions from becoming a crash.
#include <cstdio>
#include <exception>

#include "cli/command.h"
#include "cli/terminal.h"

namespace tessera::cli {
namespace {

int dispatch(const Command& command) {
  struct Visitor {
    int operator()(const RunArgs& args) const { return run_command(args); }
    int operator()(const InfoArgs& args) const { return info_command(args); }
    int operator()(const VerifyArgs& args) const { return verify_command(args); }
    int operator()(const EvalArgs& args) const { return eval_command(args); }
    int operator()(const BenchArgs& args) const { return bench_command(args); }
    int operator()(const ShortlistArgs& args) const { return shortlist_command(args); }
  };
  return std::visit(Visitor{}, command);
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  using namespace tessera::cli;
  try {
    const auto line = parse_command_line(argc, argv);
    if (!line) return end_output(line.error());
    install_log_sink(line->verbose);
    return end_output(dispatch(line->command));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tessera: %s\n", error.what());
    return kExitError;
  }
}
