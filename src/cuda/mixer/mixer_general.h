// SPDX-License-Identifier: Apache-2.0
// The mixer from separate launches: norm, product, SiLU, product, gated mean. Any shape and weight
// type; also what prompts use, whose products are large.
#pragma once

#include "cuda/context.h"
#include "ops/mixer.h"

namespace tessera::cuda {

/// N of `rows` rows, each branch by its own mean.
void launch_branch_norm(Context& context, const ops::MixerArgs& args, int first_row, int rows,
                        void* normed);

void launch_mixer_general(Context& context, const ops::MixerArgs& args);

}  // namespace tessera::cuda
