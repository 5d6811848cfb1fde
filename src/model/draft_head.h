// SPDX-License-Identifier: Apache-2.0
// Heads of the draft layer that read less than the model's: fewer rows, or fewer bits.
#pragma once

#include <span>

#include "model/weights.h"

namespace tessera {

/// Gives the draft layer of `weights` (on the host) a head of the rows of `ids` alone: ascending,
/// each once, below the vocabulary size. FP8 rows become BF16: rows of one scale block do not stay
/// together, and what is drafted is verified with the whole head.
void cut_draft_head(ModelWeights& weights, std::span<const int32_t> ids);

/// Gives it the same head in E4M3, a scale for each 128 x 128 block: its largest magnitude becomes
/// 448. A head in FP8 already stays as it is.
void quantise_draft_head(ModelWeights& weights);

}  // namespace tessera
