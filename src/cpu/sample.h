// SPDX-License-Identifier: Apache-2.0
// Sampling of both CPU backends.
#pragma once

#include "ops/sample.h"

namespace tessera::cpu {

void sample(const ops::SampleArgs& args);

}  // namespace tessera::cpu
