// SPDX-License-Identifier: Apache-2.0
// The two CPU backends.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace tessera::cpu {

/// Short and obviously right: FP32 storage, double accumulation, one thread. The oracle of every
/// other version.
std::unique_ptr<ops::Ops> make_reference_ops();

/// SIMD (chosen once from the processor's features) and threads; weights read as stored,
/// activations FP32.
std::unique_ptr<ops::Ops> make_fast_ops();

}  // namespace tessera::cpu
