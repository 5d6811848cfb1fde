// SPDX-License-Identifier: Apache-2.0
// A model without a checkpoint: the layer geometry of the released model with random weights, for
// speed only. One GDN and one QSA layer, 64 experts, a small vocabulary, no n-gram table.
#pragma once

#include <tessera/bench.h>
#include <vector>

#include "core/huge_buffer.h"
#include "model/config.h"
#include "model/weights.h"

namespace tessera {

struct SyntheticModel {
  ModelConfig config{};
  ModelWeights weights{};
  std::vector<HugeBuffer> storage{};  // owns what `weights` points to
};

/// kBf16: every weight BF16. kFp8: routed experts E4M3 with 128x128 scales, the rest BF16.
SyntheticModel make_synthetic_model(SyntheticWeights kind);

}  // namespace tessera
