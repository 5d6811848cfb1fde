// SPDX-License-Identifier: Apache-2.0
// Parts of config.json with rules of their own: rotary embedding and quantisation.
#pragma once

#include "model/config.h"
#include "model/config_fields.h"

namespace tessera {

/// Fills `config.rope`, `config.qsa.rotary_dim`, and stretches `config.max_positions` under YaRN.
/// Needs the head dims and `max_positions` of the file.
void read_rope(const ConfigFields& text, ModelConfig& config);

/// Refuses every scheme that the weight binder cannot read, by name, and every place where another
/// reader would look for one but this one does not. `text` is `root` in a text-only file.
QuantMethod read_quantization(const ConfigFields& root, const ConfigFields& text, bool text_only);

}  // namespace tessera
