// SPDX-License-Identifier: Apache-2.0
// Short random histories; the long ones have the label slow.
#include <gtest/gtest.h>

#include "tests/engine/draft_machine.h"
#include "tests/engine/engine_machine.h"

namespace tessera::test {
namespace {

TEST(DraftMachine, AShortHistoryIsThatOfPlainDecoding) {
  constexpr uint64_t kSeed = 1;
  constexpr int kSteps = 1000;
  run_draft_machine(kSeed, kSteps);
}

TEST(EngineMachine, ClientsGetTheTextsOfPlainDecoding) {
  constexpr uint64_t kSeed = 2;
  constexpr int kSteps = 2000;
  run_engine_machine(kSeed, kSteps);
}

TEST(EngineMachine, RoundsInFlightGiveThemToo) {
  constexpr int kSteps = 3000;
  for (const uint64_t seed : {3U, 4U}) run_engine_machine(seed, kSteps, RoundDriver::kDevice);
}

}  // namespace
}  // namespace tessera::test
