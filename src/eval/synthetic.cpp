// SPDX-License-Identifier: Apache-2.0
// Fills the released geometry from a counter-based generator.
#include "eval/synthetic.h"

#include <algorithm>
#include <cmath>

#include "core/arena.h"
#include "core/parallel.h"
#include "core/philox.h"

namespace tessera {
namespace {

// The released geometry (config.json of Qwen3.8-Flash-Next), and what a CPU bench cuts of it.
constexpr int kHidden = 2560;
constexpr int kExperts = 512;
constexpr int kVocab = 248320;
constexpr int kContext = 262144;
constexpr int kQsaInterval = 4;  // every fourth layer
constexpr int kSmallExperts = 64;
constexpr int kSmallVocab = 8192;
constexpr int kSmallContext = 65536;
constexpr double kRopeTheta = 1e7;
constexpr float kLogDecay = -4.0F;  // a_log: slow decay, so that the state stays alive

ModelConfig released_geometry(int layers) {
  const bool small = layers == 0;
  ModelConfig config;
  config.architecture = "synthetic weights, released layer geometry";
  config.vocab_size = small ? kSmallVocab : kVocab;
  config.hidden = kHidden;
  config.branches = 4;
  config.mixer_rank = 320;
  config.max_positions = small ? kSmallContext : kContext;
  if (small) config.layers = {LayerKind::kGdn, LayerKind::kQsa};
  for (int layer = 1; layer <= layers; ++layer)
    config.layers.push_back(layer % kQsaInterval == 0 ? LayerKind::kQsa : LayerKind::kGdn);
  config.gdn = {
      .key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .conv_kernel = 4};
  config.qsa = {.heads = 24,
                .kv_heads = 2,
                .head_dim = 256,
                .index_heads = 4,
                .index_dim = 128,
                .block = 4,
                .rotary_dim = 64};
  config.indexer_budget = 2048;
  for (int index = 0; index < config.qsa.rotary_dim / 2; ++index) {
    const double exponent = -2.0 * index / config.qsa.rotary_dim;
    config.rope.inv_freq.push_back(static_cast<float>(std::pow(kRopeTheta, exponent)));
    config.rope.axis.push_back(0);
  }
  config.moe = {.num_experts = small ? kSmallExperts : kExperts,
                .top_k = 10,
                .width = 640,
                .shared_width = 640};
  return config;
}

/// Fills weights from a counter-based generator: same bytes on every machine.
class Filler {
 public:
  explicit Filler(SyntheticModel& model) : model_(model) {}

  /// Values of magnitude about 1 / sqrt(in), random sign and mantissa.
  ops::LinearWeight linear(int out, int in, DType dtype = DType::kBF16) {
    const size_t count = static_cast<size_t>(out) * static_cast<size_t>(in);
    std::byte* bytes = take(count * dtype_bytes(dtype));
    ops::LinearWeight weight{.data = bytes, .dtype = dtype, .out_features = out, .in_features = in};
    const double magnitude = 1.0 / std::sqrt(static_cast<double>(in));
    if (dtype == DType::kF8E4M3) {
      constexpr uint64_t kKeep = 0x8787878787878787U;      // sign and mantissa
      constexpr uint64_t kExponent = 0x3838383838383838U;  // 2^0
      fill(bytes, count, kKeep, kExponent);
      const auto blocks = static_cast<size_t>((out + ops::kScaleBlock - 1) / ops::kScaleBlock) *
                          static_cast<size_t>(weight.scale_cols());
      weight.scale = constant(blocks, static_cast<float>(magnitude));
    } else {
      constexpr uint64_t kKeep = 0x807F807F807F807FU;
      const auto exponent = static_cast<uint64_t>(127 + std::ilogb(magnitude)) << 7;
      fill(bytes, count * sizeof(uint16_t), kKeep, exponent * 0x0001000100010001U);
    }
    return weight;
  }

  const float* constant(size_t count, float value) {
    auto* data = reinterpret_cast<float*>(take(count * sizeof(float)));
    std::fill(data, data + count, value);
    return data;
  }

 private:
  std::byte* take(size_t bytes) {
    const size_t wanted = align_up(bytes);
    if (model_.storage.empty() || used_ + wanted > model_.storage.back().size()) {
      model_.storage.emplace_back(std::max(wanted, kChunkBytes));
      used_ = 0;
    }
    std::byte* result = model_.storage.back().data() + used_;
    used_ += wanted;
    return result;
  }

  void fill(std::byte* bytes, size_t count, uint64_t keep, uint64_t set) {
    const uint64_t stream = next_stream_++;
    auto* words = reinterpret_cast<uint64_t*>(bytes);
    const auto pairs = static_cast<int64_t>(count / (2 * sizeof(uint64_t)));
    constexpr int64_t kGrain = 4096;
    parallel_for(pairs, kGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t pair = begin; pair < end; ++pair) {
        const auto bits =
            philox4x32({static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32),
                        static_cast<uint32_t>(DrawPurpose::kWeights), 0},
                       stream);
        words[2 * pair] = (((uint64_t{bits[0]} << 32) | bits[1]) & keep) | set;
        words[2 * pair + 1] = (((uint64_t{bits[2]} << 32) | bits[3]) & keep) | set;
      }
    });
  }

  static constexpr size_t kChunkBytes = size_t{64} << 20;

  SyntheticModel& model_;
  size_t used_ = 0;  // of the last chunk
  uint64_t next_stream_ = 1;
};

ops::MixerWeights mixer(Filler& fill, const ModelConfig& config, bool inject) {
  ops::MixerWeights weights;
  weights.norm = fill.constant(static_cast<size_t>(config.wide()), 0.0F);
  weights.down = fill.linear(config.mixer_rank, config.wide());
  weights.up = fill.linear(config.wide(), config.mixer_rank);
  if (inject) weights.inject = fill.linear(config.branches, config.wide());
  return weights;
}

GdnWeights gdn(Filler& fill, const ModelConfig& config) {
  const ops::GdnShape& shape = config.gdn;
  const int value_width = shape.value_heads * shape.value_dim;
  GdnWeights weights;
  weights.in_qkv = fill.linear(shape.channels(), config.hidden);
  weights.in_z = fill.linear(value_width, config.hidden);
  weights.in_a = fill.linear(shape.value_heads, config.hidden);
  weights.in_b = fill.linear(shape.value_heads, config.hidden);
  weights.out = fill.linear(config.hidden, value_width);
  weights.conv = fill.constant(
      static_cast<size_t>(shape.channels()) * static_cast<size_t>(shape.conv_kernel), 0.25F);
  weights.a_log = fill.constant(static_cast<size_t>(shape.value_heads), kLogDecay);
  weights.dt_bias = fill.constant(static_cast<size_t>(shape.value_heads), 0.0F);
  weights.norm = fill.constant(static_cast<size_t>(shape.value_dim), 1.0F);
  return weights;
}

QsaWeights qsa(Filler& fill, const ModelConfig& config) {
  const ops::QsaShape& shape = config.qsa;
  QsaWeights weights;
  weights.q_gate = fill.linear(shape.heads * 2 * shape.head_dim, config.hidden);
  weights.k = fill.linear(shape.kv_heads * shape.head_dim, config.hidden);
  weights.v = fill.linear(shape.kv_heads * shape.head_dim, config.hidden);
  weights.index_qk = fill.linear((shape.index_heads + 1) * shape.index_dim, config.hidden);
  weights.out = fill.linear(config.hidden, shape.heads * shape.head_dim);
  weights.q_norm = fill.constant(static_cast<size_t>(shape.head_dim), 0.0F);
  weights.k_norm = fill.constant(static_cast<size_t>(shape.head_dim), 0.0F);
  weights.index_q_norm = fill.constant(static_cast<size_t>(shape.index_dim), 0.0F);
  weights.index_k_norm = fill.constant(static_cast<size_t>(shape.index_dim), 0.0F);
  return weights;
}

ops::ExpertWeight expert(Filler& fill, const ModelConfig& config, int width, DType dtype) {
  return {.gate = fill.linear(width, config.hidden, dtype),
          .up = fill.linear(width, config.hidden, dtype),
          .down = fill.linear(config.hidden, width, dtype)};
}

MoeWeights moe(Filler& fill, const ModelConfig& config, DType dtype) {
  MoeWeights weights;
  weights.router = fill.linear(config.moe.num_experts, config.hidden);
  for (int index = 0; index < config.moe.num_experts; ++index)
    weights.experts.push_back(expert(fill, config, config.moe.width, dtype));
  weights.shared = expert(fill, config, config.moe.shared_width, DType::kBF16);
  weights.shared_gate = fill.linear(1, config.hidden);
  return weights;
}

LayerWeights layer(Filler& fill, const ModelConfig& config, LayerKind kind, DType experts) {
  LayerWeights layer;
  layer.kind = kind;
  layer.attn_mixer = mixer(fill, config, true);
  layer.mlp_mixer = mixer(fill, config, true);
  if (kind == LayerKind::kGdn) {
    layer.gdn = gdn(fill, config);
  } else {
    layer.qsa = qsa(fill, config);
  }
  layer.moe = moe(fill, config, experts);
  return layer;
}

DraftWeights draft_layer(Filler& fill, const ModelConfig& config, DType experts) {
  DraftWeights weights;
  weights.norm_embedding = fill.constant(static_cast<size_t>(config.hidden), 0.0F);
  weights.norm_hidden = fill.constant(static_cast<size_t>(config.wide()), 0.0F);
  weights.embedding = fill.linear(config.hidden, config.hidden);
  weights.hidden = fill.linear(config.hidden, config.hidden);
  weights.layer = layer(fill, config, LayerKind::kQsa, experts);
  weights.final_mixer = mixer(fill, config, false);
  return weights;
}

}  // namespace

SyntheticModel make_synthetic_model(SyntheticWeights kind, int layers, bool draft) {
  SyntheticModel model;
  model.config = released_geometry(layers);
  const ModelConfig& config = model.config;
  const DType expert_dtype = kind == SyntheticWeights::kFp8 ? DType::kF8E4M3 : DType::kBF16;
  Filler fill(model);
  ModelWeights& weights = model.weights;
  weights.layout = kind == SyntheticWeights::kFp8 ? "synthetic: FP8 routed experts, the rest BF16"
                                                  : "synthetic: BF16";
  weights.embed = fill.linear(config.vocab_size, config.hidden);
  weights.lm_head = fill.linear(config.vocab_size, config.hidden);
  weights.final_mixer = mixer(fill, config, false);
  for (const LayerKind layer_kind : config.layers)
    weights.layers.push_back(layer(fill, config, layer_kind, expert_dtype));
  if (draft) weights.draft = draft_layer(fill, config, expert_dtype);
  return model;
}

}  // namespace tessera
