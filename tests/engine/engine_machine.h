// SPDX-License-Identifier: Apache-2.0
// Random histories of clients of one engine that drafts, against an engine that does not.
#pragma once

#include <tessera/engine.h>

#include <cstdint>

namespace tessera::test {

/// Runs `steps` random steps: submit (from the start or from a kept state), read, cancel, leave,
/// save and load, drop. Every text is that of plain decoding; a request may fail only because kept
/// states hold the pages; at the end nothing is running and no page is held.
void run_engine_machine(uint64_t seed, int steps, RoundDriver rounds = RoundDriver::kHost);

}  // namespace tessera::test
