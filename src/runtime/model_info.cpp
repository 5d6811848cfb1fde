// SPDX-License-Identifier: Apache-2.0
// Sizes of state parts and the kernels in use, in words.
#include "runtime/model_info.h"

#include <filesystem>
#include <string>

#include "runtime/loaded_model.h"

namespace tessera {
namespace {

std::string part_note(const StateEntry& entry) {
  std::string note =
      std::to_string(entry.layers.size()) + (entry.layers.size() == 1 ? " layer" : " layers");
  if (entry.rule == IndexRule::kRing)
    note +=
        ", ring of " + std::to_string(entry.slots) + " (reach " + std::to_string(entry.reach) + ")";
  return note;
}

void describe_state(const StateLayout& layout, ModelInfo& info) {
  for (const StateEntry& entry : layout.entries()) {
    if (entry.host_only) {
      info.state_per_sequence.push_back({.name = entry.name, .note = "host structure"});
    } else if (entry.layers.empty()) {
      info.state_per_sequence.push_back({.name = entry.name, .note = "off: no draft layer"});
    } else if (entry.rule == IndexRule::kPage) {
      info.state_per_token.push_back({.name = entry.name,
                                      .bytes = entry.total_bytes() / ops::kPageTokens,
                                      .note = part_note(entry)});
    } else {
      info.state_per_sequence.push_back(
          {.name = entry.name, .bytes = entry.total_bytes(), .note = part_note(entry)});
    }
  }
}

}  // namespace

ModelInfo describe_model(const EngineOptions& options, const ModelParts& parts,
                         const StateLayout& layout, const ops::Ops& ops, int max_context,
                         int budget_blocks) {
  const ModelConfig& config = parts.config;
  ModelInfo info;
  const std::filesystem::path dir(options.model_dir);
  info.name = options.model_dir.empty()
                  ? config.architecture
                  : (dir.has_filename() ? dir : dir.parent_path()).filename().string();
  info.layout = parts.weights.layout;
  info.vocab_size = config.vocab_size;
  info.max_context = max_context;
  info.hidden_size = config.hidden;
  info.num_layers = config.num_layers();
  info.indexer_budget = budget_blocks * config.qsa.block;
  for (const LayerKind kind : config.layers)
    info.layer_kinds.emplace_back(kind == LayerKind::kGdn ? "GDN" : "QSA");
  info.weights = parts.weights.sizes;
  info.ignored_tensors = parts.weights.ignored;
  info.defaults = parts.defaults;
  describe_state(layout, info);
  for (ops::KernelNote& note : ops.kernels())
    info.kernels.push_back({std::move(note.op), std::move(note.kernel), std::move(note.reason)});
  return info;
}

}  // namespace tessera
