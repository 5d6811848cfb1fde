// SPDX-License-Identifier: Apache-2.0
// The draft head over a shortlist of ids.
#pragma once

#include <span>

#include "model/weights.h"

namespace tessera {

/// Gives the draft layer of `weights` (on the host) a head of the rows of `ids` alone: ascending,
/// each once, below the vocabulary size. FP8 rows become BF16: rows of one scale block do not stay
/// together, and what is drafted is verified with the whole head.
void cut_draft_head(ModelWeights& weights, std::span<const int32_t> ids);

}  // namespace tessera
