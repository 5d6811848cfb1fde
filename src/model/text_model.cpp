// SPDX-License-Identifier: Apache-2.0
// The trunk: embedding, layers, final mixer, head.
#include "model/text_model.h"

namespace tessera {

TextModel::TextModel(const ModelConfig& config, const ModelWeights& weights,
                     const StateLayout& layout, ops::Ops& ops, std::byte* pool, int max_context)
    : config_(config),
      weights_(weights),
      layout_(layout),
      ops_(ops),
      traits_(ops.traits()),
      pool_(pool),
      max_context_(max_context),
      block_arena_(ops.memory()),
      constant_arena_(ops.memory()),
      rope_(place_rope()),
      trunk_(ops.memory()),
      draft_(ops.memory()) {
  trunk_.head = &weights_.lm_head;
  const bool has_own = weights_.draft && weights_.draft->own_head;
  draft_.head = has_own ? &weights_.draft->own_head : &weights_.lm_head;
  if (has_own) place_shortlist();
  ops_.forget_repeats();
}

ops::RopeTable TextModel::place_rope() {
  const RopeConfig& rope = config_.rope;
  auto* inv_freq = constant_arena_.take<float>(rope.inv_freq.size());
  auto* axis = constant_arena_.take<int32_t>(rope.axis.size());
  ops_.memory().copy_in(inv_freq, rope.inv_freq.data(), rope.inv_freq.size() * sizeof(float));
  ops_.memory().copy_in(axis, rope.axis.data(), rope.axis.size() * sizeof(int32_t));
  return {.inv_freq = inv_freq, .axis = axis, .attention_scale = rope.attention_scale};
}

void TextModel::place_shortlist() {
  const std::vector<int32_t>& ids = weights_.draft->shortlist;
  if (ids.empty()) return;
  auto* listed = constant_arena_.take<int32_t>(ids.size());
  ops_.memory().copy_in(listed, ids.data(), ids.size() * sizeof(int32_t));
  listed_ = listed;
}

/// Everything of `pass_` but the branches themselves.
void TextModel::reserve_buffers(ops::Role role, int num_rows, int logit_rows) {
  const auto rows = static_cast<size_t>(num_rows);
  const auto wanted = static_cast<size_t>(logit_rows);
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto wide = static_cast<size_t>(config_.wide());
  Arena& arena = pass_->arena;
  pass_->role = role;
  pass_->normed = traits_.combine_norms ? take(arena, rows * wide) : nullptr;
  pass_->mixed = take(arena, rows * hidden);
  pass_->inject = arena.take<float>(rows * static_cast<size_t>(config_.branches));
  pass_->out = take(arena, rows * hidden);
  pass_->hidden = take(arena, wanted * hidden);
  pass_->logits =
      role == ops::Role::kDecode ? arena.take<float>(wanted * pass_->head_rows()) : nullptr;
}

void TextModel::reserve_trunk(ops::Role role, int num_rows, int logit_rows) {
  const auto wide = static_cast<size_t>(config_.wide());
  pass_ = &trunk_;
  pass_->arena.reset();
  block_arena_.reset();
  pass_->wide = take(pass_->arena, static_cast<size_t>(num_rows) * wide);
  pass_->selected = take(pass_->arena, static_cast<size_t>(logit_rows) * wide);
  reserve_buffers(role, num_rows, logit_rows);
}

/// A decode launch is a step that may be repeated: everything that changes from one to the next
/// comes in through `begin`.
void TextModel::forward(const Launch& launch) {
  reserve_trunk(launch.batch.role, launch.batch.num_rows,
                static_cast<int>(launch.logit_rows.size()));
  if (launch.batch.num_rows == 0) return;
  pass_->inputs = ops_.begin({.batch = launch.batch,
                              .ids = launch.ids,
                              .positions = launch.positions,
                              .logit_rows = launch.logit_rows});
  if (pass_->role == ops::Role::kPrefill || launch.tap != nullptr) return run(launch);
  const ops::StepKey key{.kind = launch.verify ? ops::StepKind::kVerify : ops::StepKind::kTrunk,
                         .num_spans = static_cast<int>(launch.batch.spans.size()),
                         .num_rows = launch.batch.num_rows,
                         .num_logit_rows = static_cast<int>(launch.logit_rows.size()),
                         .buffers = pass_->wide,
                         .temporaries = block_arena_.base()};
  ops_.repeat(key, [&] { run(launch); });
}

void TextModel::run(const Launch& launch) {
  ops_.embed({.ids = pass_->inputs.ids,
              .table = weights_.embed,
              .wide = pass_->wide,
              .rows = launch.batch.num_rows,
              .branches = config_.branches});
  pass_->normed_is_current = false;
  for (int layer = 0; layer < config_.num_layers(); ++layer) {
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    if (config_.has_ple(layer)) run_ple(layer, launch);

    mix(weights.attn_mixer, launch);
    tap_activations(launch, "attn_in", layer, pass_->mixed, config_.hidden);
    tap_values(launch, "attn_inject", layer, pass_->inject, DType::kF32, launch.batch.num_rows,
               config_.branches);
    if (weights.kind == LayerKind::kGdn) {
      run_gdn(layer, launch);
    } else {
      run_qsa(layer, weights.qsa, launch, {});
    }
    tap_activations(launch, "attn_out", layer, pass_->out, config_.hidden);
    ops_.combine(combine_into(weights.mlp_mixer.norm, launch.batch.num_rows));
    pass_->normed_is_current = traits_.combine_norms;

    mix(weights.mlp_mixer, launch);
    run_moe(layer, weights.moe, norm_after(layer), launch);
    tap_activations(launch, "mlp_out", layer, pass_->out, config_.hidden);
    tap_activations(launch, "layer", layer, pass_->wide, config_.wide());
  }
  finish(launch);
}

void TextModel::mix(const ops::MixerWeights& weights, const Launch& launch) {
  ops_.mixer({.wide = pass_->wide,
              .normed = pass_->normed_is_current ? pass_->normed : nullptr,
              .weights = weights,
              .mixed = pass_->mixed,
              .inject = pass_->inject,
              .rows = launch.batch.num_rows,
              .branches = config_.branches,
              .hidden = config_.hidden,
              .eps = config_.eps,
              .role = pass_->role});
}

/// Norm weight of the mixer that reads the branches right after the MoE of `layer`; nullptr when
/// something else does: the n-gram memory changes them first, the final mixer reads few rows.
const float* TextModel::norm_after(int layer) const {
  const int next = layer + 1;
  if (next == config_.num_layers() || config_.has_ple(next)) return nullptr;
  return weights_.layers[static_cast<size_t>(next)].attn_mixer.norm;
}

ops::CombineArgs TextModel::combine_into(const float* next_norm, int rows) const {
  const bool fused = traits_.combine_norms && next_norm != nullptr;
  return {.wide = pass_->wide,
          .out = pass_->out,
          .inject = pass_->inject,
          .next_norm = fused ? next_norm : nullptr,
          .normed = fused ? pass_->normed : nullptr,
          .eps = config_.eps,
          .rows = rows,
          .branches = config_.branches,
          .hidden = config_.hidden};
}

/// State that later launches read, the final mixer of the rows whose logits are wanted, and in a
/// decode launch their logits.
void TextModel::finish(const Launch& launch) {
  const auto count = static_cast<int>(launch.logit_rows.size());
  ops_.finish({.ids = pass_->inputs.ids,
               .wide = pass_->wide,
               .width = config_.wide(),
               .batch = launch.batch,
               .keeps_wide = !launch.in_round,
               .token_ring = layout_.ring(StatePart::kTokenIds, 0),
               .wide_offset = layout_.offset(StatePart::kWideResidual, 0),
               .logit_rows = pass_->inputs.logit_rows,
               .num_logit_rows = count,
               .selected = pass_->selected});
  if (count == 0) return;
  mix_final(weights_.final_mixer, pass_->selected, count);
  tap_values(launch, "final_hidden", 0, pass_->hidden, traits_.activation, count, config_.hidden);
  if (pass_->logits != nullptr) head(0, count, pass_->logits);
}

void TextModel::mix_final(const ops::MixerWeights& weights, const void* wide, int rows) {
  ops_.mixer({.wide = wide,
              .normed = nullptr,
              .weights = weights,
              .mixed = pass_->hidden,
              .inject = nullptr,
              .rows = rows,
              .branches = config_.branches,
              .hidden = config_.hidden,
              .eps = config_.eps,
              .role = pass_->role});
}

void TextModel::head(int first, int count, float* out) {
  const ops::LinearPart part{.weight = *pass_->head, .y = out, .output = ops::Output::kFloat};
  const size_t skipped = static_cast<size_t>(first) * static_cast<size_t>(config_.hidden);
  ops_.linear({.x = static_cast<const std::byte*>(pass_->hidden) +
                    skipped * dtype_bytes(traits_.activation),
               .parts = {&part, 1},
               .rows = count,
               .role = pass_->role});
}

void TextModel::logits(int first, int count, float* out) {
  pass_ = &trunk_;
  read_logits(first, count, out);
}

void TextModel::read_logits(int first, int count, float* out) {
  if (count == 0) return;
  const size_t vocab = pass_->head_rows();
  const size_t bytes = static_cast<size_t>(count) * vocab * sizeof(float);
  if (pass_->logits != nullptr)
    return ops_.memory().copy_out(out, pass_->logits + static_cast<size_t>(first) * vocab, bytes);
  if (ops_.memory().on_host()) return head(first, count, out);
  ops_.memory().copy_out(out, compute_logits(first, count), bytes);
}

/// In the backend's memory, until the next block or call.
float* TextModel::compute_logits(int first, int count) {
  block_arena_.reset();
  auto* computed = block_arena_.take<float>(static_cast<size_t>(count) * pass_->head_rows());
  head(first, count, computed);
  return computed;
}

void TextModel::sample(int first, ops::SampleArgs args) {
  pass_ = &trunk_;
  sample_rows(first, args);
}

void TextModel::sample_rows(int first, ops::SampleArgs args) {
  const auto count = static_cast<int>(args.rows.size());
  if (count == 0) return;
  const size_t vocab = pass_->head_rows();
  args.vocab = pass_->head->out_features;
  args.logits = pass_->logits != nullptr ? pass_->logits + static_cast<size_t>(first) * vocab
                                         : compute_logits(first, count);
  ops_.sample(args);
}

void TextModel::tap_values(const Launch& launch, const char* name, int layer, const void* data,
                           DType dtype, int rows, int cols) const {
  if (launch.tap == nullptr) return;
  const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(cols);
  std::vector<float> values;
  if (dtype == DType::kBF16) {
    for (const uint16_t bits : on_host(static_cast<const uint16_t*>(data), count))
      values.push_back(bf16_to_float(bits));
  } else {
    values = on_host(static_cast<const float*>(data), count);
  }
  launch.tap->values(name, layer, values.data(), rows, cols);
}

void TextModel::tap_activations(const Launch& launch, const char* name, int layer, const void* data,
                                int cols) const {
  tap_values(launch, name, layer, data, traits_.activation, launch.batch.num_rows, cols);
}

}  // namespace tessera
