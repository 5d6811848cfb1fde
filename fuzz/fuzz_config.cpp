// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as config.json and generation_config.json: an error, or sizes the engine can use.
#include <cstdint>
#include <cstdlib>

#include "model/config.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_config(const tessera::ModelConfig& config) {
  require(config.num_layers() > 0 && config.wide() > 0);
  require(config.rope.inv_freq.size() == static_cast<size_t>(config.qsa.rotary_dim) / 2);
  require(config.rope.axis.size() == config.rope.inv_freq.size());
  require(tessera::ops::kPageTokens % config.qsa.block == 0);
  require(config.indexer_budget % config.qsa.block == 0);
  for (const int layer : config.ple.layers) {
    require(layer >= 0 && layer < config.num_layers() && config.has_ple(layer));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto config = tessera::parse_model_config(text, "fuzz")) check_config(*config);
  if (const auto defaults = tessera::parse_generation_config(text, "fuzz")) {
    require(defaults->sampling.temperature >= 0 && defaults->sampling.top_p > 0);
  }
  return 0;
}
