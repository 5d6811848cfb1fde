// SPDX-License-Identifier: Apache-2.0
// What `tessera info` and the start-up log say about a loaded model.
#pragma once

#include <tessera/engine.h>

namespace tessera {

struct ModelParts;
class StateLayout;
namespace ops {
class Ops;
}

ModelInfo describe_model(const EngineOptions& options, const ModelParts& parts,
                         const StateLayout& layout, const ops::Ops& ops, int max_context,
                         int budget_blocks);

}  // namespace tessera
