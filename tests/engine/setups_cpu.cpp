// SPDX-License-Identifier: Apache-2.0
// The CPU backends: texts of the trained model, states of the smallest one.
#include "tests/engine/setups.h"

namespace tessera::test {

std::span<const Setup> draft_setups() {
  static constexpr Setup kSetups[] = {
      {.name = "tiny", .model = "models/tiny"},
      {.name = "tiny_flying", .model = "models/tiny", .rounds = RoundDriver::kDevice}};
  return kSetups;
}

std::span<const Setup> state_setups() {
  static constexpr Setup kSetups[] = {
      {.name = "reference", .model = "models/nano", .ops = OpsKind::kReference},
      {.name = "fast", .model = "models/nano"}};
  return kSetups;
}

}  // namespace tessera::test
