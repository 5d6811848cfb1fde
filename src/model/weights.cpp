// SPDX-License-Identifier: Apache-2.0
// Binds a whole checkpoint: trunk tensors, layers, then the account of everything in the files.
#include "model/weights.h"

#include "model/weight_binder.h"
#include "model/weight_layers.h"
#include "model/weight_report.h"

namespace tessera {
namespace {

constexpr const char* kDraftPrefix = "mtp.";

void bind_vocabulary(WeightBinder& binder, const std::string& prefix, const ModelConfig& config,
                     ModelWeights& weights) {
  const std::string embedding = prefix + "embed_tokens.weight";
  weights.embed =
      binder.linear(embedding, config.vocab_size, config.hidden, WeightPart::kEmbedding);
  if (weights.embed.dtype == DType::kF8E4M3) {
    binder.refuse({.code = Errc::kUnsupported,
                   .what = "quantised embedding",
                   .where = embedding,
                   .expected = "BF16, F16 or F32",
                   .found = dtype_name(weights.embed.dtype)});
  }
  const auto head = binder.tensors().find("lm_head.weight");
  if (config.tied_embeddings && !binder.error() && head != binder.tensors().end()) {
    Result<void> tied = check_tied_head(binder.tensors().at(embedding), head->second);
    if (!tied) binder.refuse(std::move(tied.error()));
  }
  weights.lm_head = config.tied_embeddings ? weights.embed
                                           : binder.linear("lm_head.weight", config.vocab_size,
                                                           config.hidden, WeightPart::kLmHead);
}

void bind_trunk(WeightBinder& binder, const ModelConfig& config, ModelWeights& weights,
                const std::function<void(double fraction)>& on_progress) {
  const std::string prefix = config.text_only_names ? "model." : "model.language_model.";
  bind_vocabulary(binder, prefix, config, weights);
  weights.final_mixer = bind_mixer(binder, prefix + "hyper_connection_mixer.", config, false);
  for (int layer = 0; layer < config.num_layers() && !binder.error(); ++layer) {
    const std::string layer_prefix = prefix + "layers." + std::to_string(layer) + ".";
    const LayerKind kind = config.layers[static_cast<size_t>(layer)];
    weights.layers.push_back(bind_layer(binder, layer_prefix, kind, config));
    if (config.has_ple(layer)) {
      weights.ple.push_back(
          bind_ple(binder, layer_prefix + "ple.", config.ple_index(layer), config));
    }
    if (on_progress) on_progress(static_cast<double>(layer + 1) / config.num_layers());
  }
}

/// A checkpoint has a draft layer when it has tensors of one; a config that merely declares one
/// promises nothing, since converters often leave it out.
bool has_draft(const Checkpoint& checkpoint) {
  const auto first = checkpoint.tensors.lower_bound(kDraftPrefix);
  return first != checkpoint.tensors.end() && first->first.starts_with(kDraftPrefix);
}

}  // namespace

Result<ModelWeights> bind_weights(const ModelConfig& config,
                                  std::shared_ptr<const Checkpoint> checkpoint,
                                  const std::function<void(double fraction)>& on_progress) {
  ModelWeights weights;
  WeightBinder binder(*checkpoint, weights);
  bind_trunk(binder, config, weights, on_progress);
  if (has_draft(*checkpoint)) weights.draft = bind_draft(binder, kDraftPrefix, config);
  if (binder.error()) return fail(binder.error().get());

  Result<std::vector<std::string>> ignored = name_ignored(*checkpoint, binder);
  if (!ignored) return fail(std::move(ignored.error()));
  if (Result<void> types = check_types(config, *checkpoint, binder); !types) {
    return fail(std::move(types.error()));
  }
  if (Result<void> quantization = check_quantization(config, *checkpoint, binder); !quantization) {
    return fail(std::move(quantization.error()));
  }
  const Result<uint64_t> hash = fingerprint(config, *checkpoint);
  if (!hash) return fail(hash.error());
  weights.fingerprint = *hash;
  weights.ignored = std::move(*ignored);
  weights.layout = describe_layout(*checkpoint, weights, binder);
  weights.sizes = binder.sizes();
  weights.checkpoint = std::move(checkpoint);
  return weights;
}

}  // namespace tessera
