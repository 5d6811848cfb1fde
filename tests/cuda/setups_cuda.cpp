// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the smallest model, the trained one, and one with the released head sizes.
#include "cuda/cuda_backend.h"
#include "tests/engine/setups.h"

namespace tessera::test {
namespace {

std::string no_device() { return cuda::why_unusable(0); }

constexpr Setup on_device(const char* name, const char* model,
                          RoundDriver rounds = RoundDriver::kDevice) {
  return {.name = name, .model = model, .device = "cuda", .rounds = rounds, .unusable = no_device};
}

constexpr Setup kSetups[] = {on_device("nano_cuda", "models/nano"),
                             on_device("tiny_cuda", "models/tiny"),
                             on_device("tiny_cuda_host", "models/tiny", RoundDriver::kHost),
                             on_device("micro_cuda", "../shared/golden/micro")};

}  // namespace

std::span<const Setup> draft_setups() { return kSetups; }
std::span<const Setup> state_setups() { return kSetups; }

}  // namespace tessera::test
