// SPDX-License-Identifier: Apache-2.0
// The chunked form of Gated DeltaNet for prompt rows (sm_90a).
#pragma once

#include "cuda/context.h"
#include "ops/gdn.h"

namespace tessera::cuda {

/// Everything but storing the rows in the ring, which the caller does in a later launch.
void launch_gdn_prefill(Context& context, const ops::GdnArgs& args);

}  // namespace tessera::cuda
