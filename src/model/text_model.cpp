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
      launch_arena_(ops.memory()),
      block_arena_(ops.memory()),
      constant_arena_(ops.memory()),
      rope_(place_rope()) {
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

void TextModel::reserve_buffers(const Launch& launch) {
  const auto rows = static_cast<size_t>(launch.batch.num_rows);
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto wide = static_cast<size_t>(config_.wide());
  const size_t logit_rows = launch.logit_rows.size();
  launch_arena_.reset();
  block_arena_.reset();
  wide_ = take(launch_arena_, rows * wide);
  normed_ = traits_.combine_norms ? take(launch_arena_, rows * wide) : nullptr;
  mixed_ = take(launch_arena_, rows * hidden);
  inject_ = launch_arena_.take<float>(rows * static_cast<size_t>(config_.branches));
  out_ = take(launch_arena_, rows * hidden);
  selected_ = take(launch_arena_, logit_rows * wide);
  hidden_ = take(launch_arena_, logit_rows * hidden);
  logits_ = role_ == ops::Role::kDecode
                ? launch_arena_.take<float>(logit_rows * static_cast<size_t>(config_.vocab_size))
                : nullptr;
}

/// A decode launch is a step that may be repeated: everything that changes from one to the next
/// comes in through `begin`.
void TextModel::forward(const Launch& launch) {
  role_ = launch.batch.role;
  reserve_buffers(launch);
  if (launch.batch.num_rows == 0) return;
  inputs_ = ops_.begin({.batch = launch.batch,
                        .ids = launch.ids,
                        .positions = launch.positions,
                        .logit_rows = launch.logit_rows});
  if (role_ == ops::Role::kPrefill || launch.tap != nullptr) return run(launch);
  const ops::StepKey key{.num_spans = static_cast<int>(launch.batch.spans.size()),
                         .num_rows = launch.batch.num_rows,
                         .num_logit_rows = static_cast<int>(launch.logit_rows.size()),
                         .buffers = wide_,
                         .temporaries = block_arena_.base()};
  ops_.repeat(key, [&] { run(launch); });
}

void TextModel::run(const Launch& launch) {
  ops_.embed({.ids = inputs_.ids,
              .table = weights_.embed,
              .wide = wide_,
              .rows = launch.batch.num_rows,
              .branches = config_.branches});
  normed_is_current_ = false;
  for (int layer = 0; layer < config_.num_layers(); ++layer) {
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    if (config_.has_ple(layer)) run_ple(layer, launch);

    mix(weights.attn_mixer, launch);
    tap_activations(launch, "attn_in", layer, mixed_, config_.hidden);
    tap_values(launch, "attn_inject", layer, inject_, DType::kF32, launch.batch.num_rows,
               config_.branches);
    if (weights.kind == LayerKind::kGdn) {
      run_gdn(layer, launch);
    } else {
      run_qsa(layer, launch);
    }
    tap_activations(launch, "attn_out", layer, out_, config_.hidden);
    ops_.combine(combine_into(weights.mlp_mixer.norm, launch));
    normed_is_current_ = traits_.combine_norms;

    mix(weights.mlp_mixer, launch);
    run_moe(layer, launch);
    tap_activations(launch, "mlp_out", layer, out_, config_.hidden);
    tap_activations(launch, "layer", layer, wide_, config_.wide());
  }
  finish(launch);
}

void TextModel::mix(const ops::MixerWeights& weights, const Launch& launch) {
  ops_.mixer({.wide = wide_,
              .normed = normed_is_current_ ? normed_ : nullptr,
              .weights = weights,
              .mixed = mixed_,
              .inject = inject_,
              .rows = launch.batch.num_rows,
              .branches = config_.branches,
              .hidden = config_.hidden,
              .eps = config_.eps,
              .role = role_});
}

/// Norm weight of the mixer that reads the branches right after the MoE of `layer`; nullptr when
/// something else does: the n-gram memory changes them first, the final mixer reads few rows.
const float* TextModel::norm_after(int layer) const {
  const int next = layer + 1;
  if (next == config_.num_layers() || config_.has_ple(next)) return nullptr;
  return weights_.layers[static_cast<size_t>(next)].attn_mixer.norm;
}

ops::CombineArgs TextModel::combine_into(const float* next_norm, const Launch& launch) const {
  const bool fused = traits_.combine_norms && next_norm != nullptr;
  return {.wide = wide_,
          .out = out_,
          .inject = inject_,
          .next_norm = fused ? next_norm : nullptr,
          .normed = fused ? normed_ : nullptr,
          .eps = config_.eps,
          .rows = launch.batch.num_rows,
          .branches = config_.branches,
          .hidden = config_.hidden};
}

/// State that later launches read, the final mixer of the rows whose logits are wanted, and in a
/// decode launch their logits.
void TextModel::finish(const Launch& launch) {
  const auto count = static_cast<int>(launch.logit_rows.size());
  ops_.finish({.ids = inputs_.ids,
               .wide = wide_,
               .width = config_.wide(),
               .batch = launch.batch,
               .token_ring = layout_.ring(StatePart::kTokenIds, 0),
               .wide_offset = layout_.offset(StatePart::kWideResidual, 0),
               .logit_rows = inputs_.logit_rows,
               .num_logit_rows = count,
               .selected = selected_});
  if (count == 0) return;
  ops_.mixer({.wide = selected_,
              .normed = nullptr,
              .weights = weights_.final_mixer,
              .mixed = hidden_,
              .inject = nullptr,
              .rows = count,
              .branches = config_.branches,
              .hidden = config_.hidden,
              .eps = config_.eps,
              .role = role_});
  tap_values(launch, "final_hidden", 0, hidden_, traits_.activation, count, config_.hidden);
  if (logits_ != nullptr) head(0, count, logits_);
}

void TextModel::head(int first, int count, float* out) {
  const ops::LinearPart part{.weight = weights_.lm_head, .y = out, .output = ops::Output::kFloat};
  const size_t skipped = static_cast<size_t>(first) * static_cast<size_t>(config_.hidden);
  ops_.linear(
      {.x = static_cast<const std::byte*>(hidden_) + skipped * dtype_bytes(traits_.activation),
       .parts = {&part, 1},
       .rows = count,
       .role = role_});
}

void TextModel::logits(int first, int count, float* out) {
  if (count == 0) return;
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  const size_t bytes = static_cast<size_t>(count) * vocab * sizeof(float);
  if (logits_ != nullptr)
    return ops_.memory().copy_out(out, logits_ + static_cast<size_t>(first) * vocab, bytes);
  if (ops_.memory().on_host()) return head(first, count, out);
  ops_.memory().copy_out(out, compute_logits(first, count), bytes);
}

/// In the backend's memory, until the next block or call.
float* TextModel::compute_logits(int first, int count) {
  block_arena_.reset();
  auto* computed = block_arena_.take<float>(static_cast<size_t>(count) *
                                            static_cast<size_t>(config_.vocab_size));
  head(first, count, computed);
  return computed;
}

void TextModel::sample(int first, ops::SampleArgs args) {
  const auto count = static_cast<int>(args.rows.size());
  if (count == 0) return;
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  args.vocab = config_.vocab_size;
  args.logits = logits_ != nullptr ? logits_ + static_cast<size_t>(first) * vocab
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
