// SPDX-License-Identifier: Apache-2.0
// Binding of one layer's tensors; `prefix` ends with a dot.
#pragma once

#include <string>

#include "model/weight_binder.h"

namespace tessera {

/// `inject` false: the final mixer, which has no branch injection.
ops::MixerWeights bind_mixer(WeightBinder& binder, const std::string& prefix,
                             const ModelConfig& config, bool inject);
LayerWeights bind_layer(WeightBinder& binder, const std::string& prefix, LayerKind kind,
                        const ModelConfig& config);
DraftWeights bind_draft(WeightBinder& binder, const std::string& prefix, const ModelConfig& config);
PleWeights bind_ple(WeightBinder& binder, const std::string& prefix, int ple_index,
                    const ModelConfig& config);

}  // namespace tessera
