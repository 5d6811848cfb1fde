// SPDX-License-Identifier: Apache-2.0
// The mixer from separate launches. launch_mixer_general: norm, product, SiLU, product, gated mean;
// any shape and weight type. launch_mixer_prompt: what supports_mixer_prompt takes.
#pragma once

#include "cuda/context.h"
#include "ops/mixer.h"

namespace tessera::cuda {

/// N of `rows` rows, each branch by its own mean.
void launch_branch_norm(Context& context, const ops::MixerArgs& args, int first_row, int rows,
                        void* normed);

void launch_mixer_general(Context& context, const ops::MixerArgs& args);
void launch_mixer_prompt(Context& context, const ops::MixerArgs& args);

}  // namespace tessera::cuda
