// SPDX-License-Identifier: Apache-2.0
// Moves bound weights into the memory of a backend.
#pragma once

#include <functional>

#include "core/memory.h"
#include "model/config.h"
#include "model/weights.h"

namespace tessera {

/// On the host nothing moves: weights are read from the file's mapping. On a device every array is
/// copied at a multiple of 256 bytes; the experts of a layer are equally spaced; the shards of an
/// n-gram table become one; the mapping and converted copies are dropped. `memory` must outlive
/// the weights. Throws std::bad_alloc when they do not fit.
ModelWeights place_weights(ModelWeights weights, const ModelConfig& config, Memory& memory,
                           const std::function<void(double fraction)>& on_progress = {});

}  // namespace tessera
