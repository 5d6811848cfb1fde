// SPDX-License-Identifier: Apache-2.0
// Random histories of drafting sequences against texts that were decoded plainly beforehand.
#pragma once

#include <cstdint>

namespace tessera::test {

/// Runs `steps` random steps over one small model and checks after each: text and logits are those
/// of plain decoding bit for bit, pages and slots are accounted for, rows are pending only where a
/// verify launch left them, and the draft layer holds what a cold run makes of the same tokens.
void run_draft_machine(uint64_t seed, int steps);

}  // namespace tessera::test
