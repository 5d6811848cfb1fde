// SPDX-License-Identifier: Apache-2.0
// Parts of config.json with rules of their own: rotary embedding and quantisation.
#pragma once

#include "model/config.h"
#include "model/config_fields.h"

namespace tessera {

/// Fills `config.rope`, `config.qsa.rotary_dim`, and stretches `config.max_positions` under YaRN.
/// Needs the head dims and `max_positions` of the file.
void read_rope(const ConfigFields& text, ModelConfig& config);

/// Refuses every scheme that the weight binder cannot read, by name.
QuantMethod read_quantization(const ConfigFields& root, const ConfigFields& text);

}  // namespace tessera
