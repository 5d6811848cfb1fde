// SPDX-License-Identifier: Apache-2.0
// config.json and generation_config.json as plain values: every size of the model comes from here.
#pragma once

#include <tessera/error.h>
#include <tessera/sampling.h>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "ops/gdn.h"
#include "ops/qsa.h"

namespace tessera {

enum class LayerKind : uint8_t { kGdn, kQsa };

struct RopeConfig {
  std::vector<float> inv_freq{};  // [rotary_dim / 2], YaRN applied
  std::vector<int32_t> axis{};    // [rotary_dim / 2], 0 t, 1 h, 2 w
  float attention_scale = 1.0F;
};

struct MoeConfig {
  int num_experts = 0;
  int top_k = 0;
  int width = 0;         // moe_intermediate_size
  int shared_width = 0;  // shared_expert_intermediate_size
  bool normalize = true;
};

struct PleConfig {
  std::vector<int> layers{};  // zero-based layer indices (the file is one-based), ascending
  int embed_dim = 0;          // E
  int conv_kernel = 0;
  int ngram_size = 0;
  int heads_per_ngram = 0;
  int64_t vocab_base = 0;  // ngram_vocab_size_base
  int vocab_multiple = 0;  // make_ngram_vocab_size_divisible_by
  int split_parts = 0;
  uint64_t seed = 1234;
  int32_t hash_eos = 0;  // first id of text_config.eos_token_id

  int heads() const { return (ngram_size - 1) * heads_per_ngram; }
  int conv_reach() const { return (conv_kernel - 1) * ngram_size; }
};

/// quantization_config, only what decides how bytes are read; tensors present in the files decide
/// the rest.
enum class QuantMethod : uint8_t { kNone, kFp8Block };

struct ModelConfig {
  std::string architecture{};
  int vocab_size = 0;
  int hidden = 0;      // H
  int branches = 0;    // S, hc_count
  int mixer_rank = 0;  // r, hc_lowrank
  float eps = 1e-6F;
  int max_positions = 0;
  std::vector<LayerKind> layers{};
  ops::GdnShape gdn;
  ops::GateActivation gdn_gate = ops::GateActivation::kSigmoid;
  ops::QsaShape qsa;
  int indexer_budget = 0;  // tokens, a multiple of qsa.block
  RopeConfig rope;
  MoeConfig moe;
  PleConfig ple;
  int mtp_layers = 0;
  bool text_only_names = false;  // "model.layers.*" instead of "model.language_model.layers.*"
  int32_t image_token = -1;
  int32_t video_token = -1;
  bool has_vision = false;
  QuantMethod quant = QuantMethod::kNone;
  std::optional<DType> dtype{};  // as declared: F32, F16 or BF16
  bool tied_embeddings = false;  // lm_head is the embedding
  uint64_t text_hash = 0;        // of the bytes of config.json, part of the weights' fingerprint

  int num_layers() const { return static_cast<int>(layers.size()); }
  int wide() const { return branches * hidden; }
  bool has_ple(int layer) const;
  int ple_index(int layer) const;  // index among the PLE layers, -1 when there is none
};

/// Parses and validates; `where` names the file in errors. Never throws on bad input.
Result<ModelConfig> parse_model_config(std::string_view json, const std::string& where);
/// Same for the folder's config.json; a quantisation declared in a file beside it is an error.
Result<ModelConfig> load_model_config(const std::string& model_dir);

/// Missing file: greedy defaults with the hash id as end of text. Malformed file: an error.
Result<GenerationDefaults> parse_generation_config(std::string_view json, const std::string& where);
Result<GenerationDefaults> load_generation_config(const std::string& model_dir,
                                                  const ModelConfig& config);

}  // namespace tessera
