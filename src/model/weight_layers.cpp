// SPDX-License-Identifier: Apache-2.0
// Names and shapes of a decoder layer: Gated Residuals, GDN or QSA, and the mixture of experts.
#include "model/weight_layers.h"

namespace tessera {
namespace {

GdnWeights bind_gdn(WeightBinder& binder, const std::string& prefix, const ModelConfig& config) {
  const ops::GdnShape& shape = config.gdn;
  const int value_width = shape.value_heads * shape.value_dim;
  constexpr WeightPart kPart = WeightPart::kGdn;
  GdnWeights weights;
  weights.in_qkv =
      binder.linear(prefix + "in_proj_qkv.weight", shape.channels(), config.hidden, kPart);
  weights.in_z = binder.linear(prefix + "in_proj_z.weight", value_width, config.hidden, kPart);
  weights.in_a =
      binder.linear(prefix + "in_proj_a.weight", shape.value_heads, config.hidden, kPart);
  weights.in_b =
      binder.linear(prefix + "in_proj_b.weight", shape.value_heads, config.hidden, kPart);
  weights.out = binder.linear(prefix + "out_proj.weight", config.hidden, value_width, kPart);
  weights.conv =
      binder.values(prefix + "conv1d.weight", {shape.channels(), 1, shape.conv_kernel}, kPart);
  weights.a_log = binder.values(prefix + "A_log", {shape.value_heads}, kPart);
  weights.dt_bias = binder.values(prefix + "dt_bias", {shape.value_heads}, kPart);
  weights.norm = binder.values(prefix + "norm.weight", {shape.value_dim}, kPart);
  return weights;
}

QsaWeights bind_qsa(WeightBinder& binder, const std::string& prefix, const ModelConfig& config) {
  const ops::QsaShape& shape = config.qsa;
  const int query_width = shape.heads * shape.head_dim;
  const int kv_width = shape.kv_heads * shape.head_dim;
  const int index_width = (shape.index_heads + 1) * shape.index_dim;
  constexpr WeightPart kPart = WeightPart::kQsa;
  constexpr WeightPart kIndexPart = WeightPart::kIndexer;
  QsaWeights weights;
  weights.q_gate = binder.linear(prefix + "q_proj.weight", 2 * query_width, config.hidden, kPart);
  weights.k = binder.linear(prefix + "k_proj.weight", kv_width, config.hidden, kPart);
  weights.v = binder.linear(prefix + "v_proj.weight", kv_width, config.hidden, kPart);
  weights.out = binder.linear(prefix + "o_proj.weight", config.hidden, query_width, kPart);
  weights.q_norm = binder.values(prefix + "q_norm.weight", {shape.head_dim}, kPart);
  weights.k_norm = binder.values(prefix + "k_norm.weight", {shape.head_dim}, kPart);
  weights.index_qk = binder.linear(prefix + "indexer.index_qk_proj.weight", index_width,
                                   config.hidden, kIndexPart);
  weights.index_q_norm =
      binder.values(prefix + "indexer.q_layernorm.weight", {shape.index_dim}, kIndexPart);
  weights.index_k_norm =
      binder.values(prefix + "indexer.k_layernorm.weight", {shape.index_dim}, kIndexPart);
  return weights;
}

ops::ExpertWeight bind_expert(WeightBinder& binder, const std::string& prefix, int width,
                              int hidden, WeightPart part) {
  return {.gate = binder.linear(prefix + "gate_proj.weight", width, hidden, part),
          .up = binder.linear(prefix + "up_proj.weight", width, hidden, part),
          .down = binder.linear(prefix + "down_proj.weight", hidden, width, part)};
}

/// Upper or lower half of the rows of a matrix.
ops::LinearWeight row_half(const ops::LinearWeight& both, bool second) {
  ops::LinearWeight half = both;
  half.out_features = both.out_features / 2;
  if (second) half.data = static_cast<const std::byte*>(both.data) + half.bytes();
  return half;
}

/// All experts in two tensors: rows of gate_up_proj are gate rows, then up rows.
std::vector<ops::ExpertWeight> bind_fused_experts(WeightBinder& binder, const std::string& prefix,
                                                  const ModelConfig& config) {
  const MoeConfig& moe = config.moe;
  constexpr WeightPart kPart = WeightPart::kRoutedExperts;
  const std::vector<ops::LinearWeight> gate_up =
      binder.stacked(prefix + "gate_up_proj", moe.num_experts, 2 * moe.width, config.hidden, kPart);
  const std::vector<ops::LinearWeight> down =
      binder.stacked(prefix + "down_proj", moe.num_experts, config.hidden, moe.width, kPart);
  std::vector<ops::ExpertWeight> experts;
  if (binder.error()) return experts;
  for (size_t expert = 0; expert < gate_up.size(); ++expert) {
    experts.push_back({.gate = row_half(gate_up[expert], false),
                       .up = row_half(gate_up[expert], true),
                       .down = down[expert]});
  }
  return experts;
}

std::vector<ops::ExpertWeight> bind_single_experts(WeightBinder& binder, const std::string& prefix,
                                                   const ModelConfig& config) {
  std::vector<ops::ExpertWeight> experts;
  for (int expert = 0; expert < config.moe.num_experts && !binder.error(); ++expert) {
    experts.push_back(bind_expert(binder, prefix + std::to_string(expert) + ".", config.moe.width,
                                  config.hidden, WeightPart::kRoutedExperts));
  }
  return experts;
}

MoeWeights bind_moe(WeightBinder& binder, const std::string& prefix, const ModelConfig& config) {
  MoeWeights weights;
  weights.router = binder.linear(prefix + "gate.weight", config.moe.num_experts, config.hidden,
                                 WeightPart::kRouter);
  const std::string experts = prefix + "experts.";
  weights.experts = binder.has(experts + "gate_up_proj")
                        ? bind_fused_experts(binder, experts, config)
                        : bind_single_experts(binder, experts, config);
  weights.shared = bind_expert(binder, prefix + "shared_expert.", config.moe.shared_width,
                               config.hidden, WeightPart::kSharedExpert);
  weights.shared_gate = binder.linear(prefix + "shared_expert_gate.weight", 1, config.hidden,
                                      WeightPart::kSharedExpert);
  return weights;
}

}  // namespace

ops::MixerWeights bind_mixer(WeightBinder& binder, const std::string& prefix,
                             const ModelConfig& config, bool inject) {
  constexpr WeightPart kPart = WeightPart::kGatedResidual;
  ops::MixerWeights weights;
  weights.norm = binder.values(prefix + "hc_norm.weight", {config.wide()}, kPart);
  weights.down = binder.linear(prefix + "input_mix_weight_down.weight", config.mixer_rank,
                               config.wide(), kPart);
  weights.up =
      binder.linear(prefix + "input_mix_weight_up.weight", config.wide(), config.mixer_rank, kPart);
  if (inject) {
    weights.inject =
        binder.linear(prefix + "block_inject_weight.weight", config.branches, config.wide(), kPart);
  }
  return weights;
}

LayerWeights bind_layer(WeightBinder& binder, const std::string& prefix, LayerKind kind,
                        const ModelConfig& config) {
  LayerWeights weights;
  weights.kind = kind;
  weights.attn_mixer = bind_mixer(binder, prefix + "attn_hyper_connection.", config, true);
  weights.mlp_mixer = bind_mixer(binder, prefix + "mlp_hyper_connection.", config, true);
  if (kind == LayerKind::kGdn) weights.gdn = bind_gdn(binder, prefix + "linear_attn.", config);
  if (kind == LayerKind::kQsa) weights.qsa = bind_qsa(binder, prefix + "self_attn.", config);
  weights.moe = bind_moe(binder, prefix + "mlp.", config);
  return weights;
}

DraftWeights bind_draft(WeightBinder& binder, const std::string& prefix,
                        const ModelConfig& config) {
  constexpr WeightPart kPart = WeightPart::kDraftLayer;
  binder.account_all_as(kPart);
  DraftWeights weights;
  weights.norm_embedding =
      binder.values(prefix + "pre_fc_norm_embedding.weight", {config.hidden}, kPart);
  weights.norm_hidden = binder.values(prefix + "pre_fc_norm_hidden.weight", {config.wide()}, kPart);
  weights.embedding =
      binder.linear(prefix + "fc_embedding.weight", config.hidden, config.hidden, kPart);
  weights.hidden = binder.linear(prefix + "fc_hidden.weight", config.hidden, config.hidden, kPart);
  weights.layer = bind_layer(binder, prefix + "layers.0.", LayerKind::kQsa, config);
  weights.final_mixer = bind_mixer(binder, prefix + "hyper_connection_mixer.", config, false);
  return weights;
}

}  // namespace tessera
