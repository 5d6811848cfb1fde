// SPDX-License-Identifier: Apache-2.0
// What is left after binding: tensors nobody reads, the layout in words, the fingerprint.
#pragma once

#include <string>
#include <vector>

#include "model/weight_binder.h"

namespace tessera {

/// Groups of unused tensors that are known and harmless, with their counts. Any other unused
/// tensor is an error: output that ignores part of the weights looks right and is wrong.
Result<std::vector<std::string>> name_ignored(const Checkpoint& checkpoint,
                                              const WeightBinder& binder);

/// "FP8 experts (128x128 blocks), FP8 n-gram table, per-expert tensors".
std::string describe_layout(const Checkpoint& checkpoint, const ModelWeights& weights,
                            const WeightBinder& binder);

/// The declared scheme and the stored types must agree.
Result<void> check_quantization(const ModelConfig& config, const Checkpoint& checkpoint,
                                const WeightBinder& binder);

/// Hash of the configuration, of all names, shapes and types, and of sampled bytes. The samples are
/// searched for NaN on the way.
Result<uint64_t> fingerprint(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace tessera
