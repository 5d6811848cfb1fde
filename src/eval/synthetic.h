// SPDX-License-Identifier: Apache-2.0
// A model without a checkpoint: the layer geometry of the released model with random weights, for
// speed only. No n-gram table.
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
/// `layers` 0: one GDN and one QSA layer with 64 experts and a small vocabulary, for a CPU. Else
/// that many layers of the released pattern with all 512 experts and the whole vocabulary. `draft`:
/// with a draft layer.
SyntheticModel make_synthetic_model(SyntheticWeights kind, int layers, bool draft = false);

}  // namespace tessera
