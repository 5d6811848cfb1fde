// SPDX-License-Identifier: Apache-2.0
// config.json to ModelConfig: every key that the engine uses, with its range and its rules.
#include "model/config.h"

#include <xxhash.h>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <system_error>
#include <utility>

#include "io/json_reader.h"
#include "io/mapped_file.h"
#include "model/config_fields.h"
#include "model/config_parts.h"

namespace tessera {
namespace {

// Bounds far above any real model; they keep products of two sizes inside int.
constexpr IntRange kWidth = {1, 1 << 18};
constexpr IntRange kHeads = {1, 1 << 12};
constexpr IntRange kHeadDim = {1, 1 << 12};
constexpr IntRange kKernel = {1, 64};
constexpr IntRange kLayers = {1, 1024};
constexpr IntRange kExperts = {1, 1 << 16};
constexpr IntRange kVocab = {2, 1 << 26};
constexpr IntRange kPositions = {1, 1 << 27};
constexpr IntRange kBranches = {1, 64};
constexpr IntRange kNgramSize = {2, 8};
constexpr IntRange kNgramHeads = {1, 64};
constexpr IntRange kNgramVocab = {2, std::numeric_limits<int32_t>::max()};
constexpr IntRange kParts = {1, 1 << 16};
constexpr size_t kMaxPleLayers = 64;
constexpr size_t kMaxConfigBytes = 16U << 20;
constexpr int kDefaultQsaInterval = 4;
constexpr int kDefaultNgramMultiple = 128;
constexpr int kDefaultSplitParts = 512;
constexpr int64_t kDefaultSeed = 1234;

void read_layers(const ConfigFields& text, ModelConfig& config) {
  const int num_layers = text.size("num_hidden_layers", kLayers);
  if (!text.has("layer_types")) {
    const int interval = text.size("full_attention_interval", kLayers, kDefaultQsaInterval);
    for (int layer = 0; layer < num_layers; ++layer) {
      config.layers.push_back((layer + 1) % interval == 0 ? LayerKind::kQsa : LayerKind::kGdn);
    }
    return;
  }
  const std::vector<std::string> kinds = text.texts("layer_types");
  text.require(std::cmp_equal(kinds.size(), num_layers), "layer_types",
               std::to_string(num_layers) + " entries (num_hidden_layers)",
               std::to_string(kinds.size()));
  for (const std::string& kind : kinds) {
    const bool is_qsa = kind == "full_attention" || kind == "qwen_sparse_attention";
    text.support(is_qsa || kind == "linear_attention", "layer_types",
                 "linear_attention, full_attention or qwen_sparse_attention", kind);
    config.layers.push_back(is_qsa ? LayerKind::kQsa : LayerKind::kGdn);
  }
}

void read_trunk(const ConfigFields& text, ModelConfig& config) {
  constexpr double kMinEps = 1e-12;
  constexpr double kMaxEps = 1e-1;
  config.vocab_size = text.size("vocab_size", kVocab);
  config.hidden = text.size("hidden_size", kWidth);
  config.branches = text.size("hc_count", kBranches);
  config.mixer_rank = text.size("hc_lowrank", kWidth);
  config.eps = static_cast<float>(text.number("rms_norm_eps", kMinEps, kMaxEps));
  config.max_positions = text.size("max_position_embeddings", kPositions);
  const std::string activation = text.text("hidden_act", "silu");
  text.support(activation == "silu", "hidden_act", "silu", activation);
  text.support(!text.boolean("attention_bias", false), "attention_bias", "false", "true");
  constexpr int kMaxMtpLayers = 8;
  config.mtp_layers = text.size("mtp_num_hidden_layers", {0, kMaxMtpLayers}, 0);
}

void read_gdn(const ConfigFields& text, ModelConfig& config) {
  ops::GdnShape& gdn = config.gdn;
  gdn.key_heads = text.size("linear_num_key_heads", kHeads);
  gdn.value_heads = text.size("linear_num_value_heads", kHeads);
  gdn.key_dim = text.size("linear_key_head_dim", kHeadDim);
  gdn.value_dim = text.size("linear_value_head_dim", kHeadDim);
  gdn.conv_kernel = text.size("linear_conv_kernel_dim", kKernel);
  text.require(gdn.value_heads % gdn.key_heads == 0, "linear_num_value_heads",
               "a multiple of linear_num_key_heads " + std::to_string(gdn.key_heads),
               std::to_string(gdn.value_heads));
  const std::string gate = text.text("output_gate_type", text.text("hidden_act", "silu"));
  const bool is_silu = gate == "silu" || gate == "swish";
  text.support(is_silu || gate == "sigmoid", "output_gate_type", "sigmoid or silu", gate);
  config.gdn_gate = is_silu ? ops::GateActivation::kSilu : ops::GateActivation::kSigmoid;
}

void read_qsa(const ConfigFields& text, ModelConfig& config) {
  ops::QsaShape& qsa = config.qsa;
  qsa.heads = text.size("num_attention_heads", kHeads);
  qsa.kv_heads = text.size("num_key_value_heads", kHeads);
  qsa.head_dim = text.size("head_dim", kHeadDim);
  qsa.index_heads = text.size("indexer_n_heads", kHeads);
  qsa.index_dim = text.size("indexer_head_dim", kHeadDim);
  qsa.block = text.size("indexer_compress_ratio", {1, ops::kPageTokens});
  config.indexer_budget = text.size("indexer_budget", kPositions);
  const int index_kv_heads = text.size("indexer_kv_heads", kHeads, 1);
  text.require(qsa.heads % qsa.kv_heads == 0, "num_attention_heads",
               "a multiple of num_key_value_heads " + std::to_string(qsa.kv_heads),
               std::to_string(qsa.heads));
  text.support(index_kv_heads == 1, "indexer_kv_heads", "1", std::to_string(index_kv_heads));
  text.support(ops::kPageTokens % qsa.block == 0, "indexer_compress_ratio",
               "a divisor of " + std::to_string(ops::kPageTokens), std::to_string(qsa.block));
  text.require(config.indexer_budget % qsa.block == 0, "indexer_budget",
               "a multiple of indexer_compress_ratio " + std::to_string(qsa.block),
               std::to_string(config.indexer_budget));
}

void read_moe(const ConfigFields& text, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  moe.num_experts = text.size("num_experts", kExperts);
  moe.top_k = text.size("num_experts_per_tok", {1, moe.num_experts});
  moe.width = text.size("moe_intermediate_size", kWidth);
  moe.shared_width = text.size("shared_expert_intermediate_size", kWidth);
  moe.normalize = text.boolean("norm_topk_prob", true);
}

void read_ple(const ConfigFields& text, ModelConfig& config) {
  PleConfig& ple = config.ple;
  const std::vector<int64_t> eos =
      text.one_or_more("eos_token_id", {0, int64_t{config.vocab_size} - 1});
  ple.hash_eos = eos.empty() ? -1 : static_cast<int32_t>(eos.front());
  const std::vector<int64_t> ids = text.integers("ple_layer_ids", {1, config.num_layers()});
  if (ids.empty()) return;
  const bool ascending =
      std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
  text.require(ascending, "ple_layer_ids", "ascending one-based layer numbers", "another order");
  text.support(ids.size() <= kMaxPleLayers, "ple_layer_ids",
               "at most " + std::to_string(kMaxPleLayers) + " layers", std::to_string(ids.size()));
  for (const int64_t id : ids) ple.layers.push_back(static_cast<int>(id) - 1);
  ple.embed_dim = text.size("ple_embed_dim", kWidth);
  ple.conv_kernel = text.size("ple_conv_kernel_size", kKernel);
  ple.ngram_size = text.size("ngram_size", kNgramSize);
  ple.heads_per_ngram = text.size("heads_per_ngram", kNgramHeads);
  ple.vocab_base = text.integer("ngram_vocab_size_base", kNgramVocab);
  ple.vocab_multiple =
      text.size("make_ngram_vocab_size_divisible_by", kWidth, kDefaultNgramMultiple);
  ple.split_parts = text.size("split_ngram_parts", kParts, kDefaultSplitParts);
  ple.seed = static_cast<uint64_t>(
      text.integer("seed", {0, std::numeric_limits<int64_t>::max()}, kDefaultSeed));
  text.require(ple.embed_dim % ple.heads() == 0, "ple_embed_dim",
               "a multiple of the " + std::to_string(ple.heads()) + " n-gram heads",
               std::to_string(ple.embed_dim));
  text.require(!eos.empty(), "eos_token_id", "an id (the n-gram hash pads with it)", "no such key");
}

/// The declared type under either spelling; a converter that changed one place must not be
/// believed.
void read_dtype(const ConfigFields& root, const ConfigFields& text, ModelConfig& config) {
  std::string declared;
  for (const ConfigFields* holder : {&root, &text}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (!holder->has(key)) continue;
      const std::string name = holder->text(key, "");
      const bool is_known = name == "float32" || name == "float16" || name == "bfloat16";
      holder->support(is_known, key, "float32, float16 or bfloat16", name);
      holder->require(declared.empty() || name == declared, key,
                      declared + " as declared elsewhere in the file", name);
      declared = name;
      if (name == "bfloat16") config.dtype = DType::kBF16;
      if (name == "float16") config.dtype = DType::kF16;
      if (name == "float32") config.dtype = DType::kF32;
    }
  }
}

/// The two flags may differ only by one of them being absent.
void read_tying(const ConfigFields& root, const ConfigFields& text, ModelConfig& config) {
  const bool inner = text.boolean("tie_word_embeddings", false);
  config.tied_embeddings = root.boolean("tie_word_embeddings", inner);
  text.require(config.tied_embeddings == inner || !text.has("tie_word_embeddings"),
               "tie_word_embeddings", "the value of the top level", inner ? "true" : "false");
}

void read_multimodal(const ConfigFields& root, ModelConfig& config) {
  const IntRange ids = {0, int64_t{config.vocab_size} - 1};
  config.image_token = root.size("image_token_id", ids, -1);
  config.video_token = root.size("video_token_id", ids, -1);
  const std::optional<ConfigFields> vision = root.child("vision_config");
  config.has_vision = vision.has_value() && !root.boolean("language_model_only", false);
  if (!config.has_vision) return;
  const std::string type = vision->text("model_type", "qwen4_exp_vision");
  vision->support(type == "qwen4_exp" || type == "qwen4_exp_vision", "model_type",
                  "qwen4_exp_vision", type);
}

/// Checks the family and returns the object that describes the text model.
ConfigFields read_identity(const ConfigFields& root, ModelConfig& config) {
  const std::optional<ConfigFields> nested = root.child("text_config");
  config.text_only_names = !nested.has_value();
  const char* expected_type = nested ? "qwen4_exp" : "qwen4_exp_text";
  const std::string type = root.text("model_type", "no model_type");
  root.support(type == expected_type, "model_type", expected_type, type);

  const char* expected_name = nested ? "Qwen4ExpForConditionalGeneration" : "Qwen4ExpForCausalLM";
  const std::vector<std::string> names = root.texts("architectures");
  config.architecture = names.empty() ? expected_name : names.front();
  root.support(config.architecture == expected_name, "architectures", expected_name,
               config.architecture);
  if (!nested) return root;
  const std::string text_type = nested->text("model_type", "qwen4_exp_text");
  nested->support(text_type == "qwen4_exp_text", "model_type", "qwen4_exp_text", text_type);
  return *nested;
}

}  // namespace

bool ModelConfig::has_ple(int layer) const { return ple_index(layer) >= 0; }

int ModelConfig::ple_index(int layer) const {
  const auto found = std::find(ple.layers.begin(), ple.layers.end(), layer);
  return found == ple.layers.end() ? -1 : static_cast<int>(found - ple.layers.begin());
}

Result<ModelConfig> parse_model_config(std::string_view json, const std::string& where) {
  const Result<boost::json::value> parsed = parse_json(json, where);
  if (!parsed) return fail(parsed.error());
  const boost::json::object* object = parsed->if_object();
  if (object == nullptr) {
    return fail({.code = Errc::kCorruptFile,
                 .what = "bad configuration",
                 .where = where,
                 .expected = "a JSON object"});
  }
  FirstError error;
  ModelConfig config;
  const ConfigFields root(*object, where + ": ", error);
  const ConfigFields text = read_identity(root, config);
  if (error) return fail(error.get());
  config.quant = read_quantization(root, text, config.text_only_names);
  read_dtype(root, text, config);
  read_trunk(text, config);
  read_layers(text, config);
  read_gdn(text, config);
  read_qsa(text, config);
  read_rope(text, config);
  read_moe(text, config);
  read_ple(text, config);
  read_tying(root, text, config);
  read_multimodal(root, config);
  if (error) return fail(error.get());
  config.text_hash = XXH3_64bits(json.data(), json.size());
  return config;
}

Result<ModelConfig> load_model_config(const std::string& model_dir) {
  const std::string path = model_dir + "/config.json";
  const std::string quant_path = model_dir + "/hf_quant_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(quant_path, ignored)) {
    return fail({.code = Errc::kUnsupported,
                 .what = "quantisation declared in a file of its own",
                 .where = quant_path,
                 .expected = "no such file; quant_method fp8 in quantization_config of config.json",
                 .hint = "checkpoints of other quantisation tools cannot be read"});
  }
  const Result<std::string> text = read_text_file(path, kMaxConfigBytes);
  if (!text) return fail(text.error());
  return parse_model_config(*text, path);
}

}  // namespace tessera
