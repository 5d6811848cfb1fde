// SPDX-License-Identifier: Apache-2.0
// A hundred thousand random steps, in histories that each start empty.
#include <gtest/gtest.h>

#include "tests/engine/draft_machine.h"
#include "tests/engine/engine_machine.h"

namespace tessera::test {
namespace {

constexpr int kSteps = 100000, kHistories = 10;

TEST(DraftMachineLong, AHundredThousandSteps) {
  for (uint64_t seed = 100; seed < 100 + kHistories; ++seed) {
    run_draft_machine(seed, kSteps / kHistories);
    if (HasFailure()) return;
  }
}

TEST(EngineMachineLong, AHundredThousandSteps) {
  for (uint64_t seed = 200; seed < 200 + kHistories; ++seed) {
    run_engine_machine(seed, kSteps / kHistories);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::test
