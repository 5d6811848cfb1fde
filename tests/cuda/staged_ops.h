// SPDX-License-Identifier: Apache-2.0
// Runs a backend whose memory is elsewhere on host arguments: what lets the op suite judge a device
// backend. Every op is staged, run and read back.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace tessera::test {

/// Presents FP32 activations; index keys have the type of `device`. The ops of a round go on as
/// they are: their state lies in `memory()`, the device's, and so must what their arguments name.
std::unique_ptr<ops::Ops> make_staged_ops(std::unique_ptr<ops::Ops> device);

}  // namespace tessera::test
