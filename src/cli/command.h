// SPDX-License-Identifier: Apache-2.0
// One function per command; each returns the exit status.
#pragma once

#include "cli/options.h"

namespace tessera::cli {

int run_command(const RunArgs& args);
int info_command(const InfoArgs& args);
int verify_command(const VerifyArgs& args);
int eval_command(const EvalArgs& args);
int bench_command(const BenchArgs& args);
int shortlist_command(const ShortlistArgs& args);

}  // namespace tessera::cli
