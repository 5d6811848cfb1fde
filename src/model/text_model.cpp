// SPDX-License-Identifier: Apache-2.0
// The trunk: embedding, layers, final mixer, head.
#include "model/text_model.h"

#include <algorithm>
#include <cstring>

namespace tessera {

TextModel::TextModel(const ModelConfig& config, const ModelWeights& weights,
                     const StateLayout& layout, ops::Ops& ops, std::byte* pool)
    : config_(config), weights_(weights), layout_(layout), ops_(ops), pool_(pool) {}

void TextModel::forward(const Launch& launch) {
  const auto rows = static_cast<size_t>(launch.batch.num_rows);
  const auto hidden = static_cast<size_t>(config_.hidden);
  role_ = launch.batch.role;
  launch_arena_.reset();
  wide_ = launch_arena_.take<float>(rows * static_cast<size_t>(config_.wide()));
  mixed_ = launch_arena_.take<float>(rows * hidden);
  inject_ = launch_arena_.take<float>(rows * static_cast<size_t>(config_.branches));
  out_ = launch_arena_.take<float>(rows * hidden);
  hidden_ = launch_arena_.take<float>(launch.logit_rows.size() * hidden);
  if (rows == 0) return;

  replicate_embedding(launch);
  for (int layer = 0; layer < config_.num_layers(); ++layer) {
    const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
    if (config_.has_ple(layer)) run_ple(layer, launch);

    mix(weights.attn_mixer, launch);
    if (launch.tap != nullptr) {
      launch.tap->values("attn_in", layer, mixed_, launch.batch.num_rows, config_.hidden);
      launch.tap->values("attn_inject", layer, inject_, launch.batch.num_rows, config_.branches);
    }
    if (weights.kind == LayerKind::kGdn) {
      run_gdn(layer, launch);
    } else {
      run_qsa(layer, launch);
    }
    if (launch.tap != nullptr)
      launch.tap->values("attn_out", layer, out_, launch.batch.num_rows, config_.hidden);
    combine(launch);

    mix(weights.mlp_mixer, launch);
    run_moe(layer, launch);
    if (launch.tap != nullptr)
      launch.tap->values("mlp_out", layer, out_, launch.batch.num_rows, config_.hidden);
    combine(launch);
    if (launch.tap != nullptr)
      launch.tap->values("layer", layer, wide_, launch.batch.num_rows, config_.wide());
  }
  finish(launch);
  store_tokens(launch);
}

void TextModel::replicate_embedding(const Launch& launch) {
  ops_.embed({.ids = launch.ids.data(),
              .table = weights_.embed,
              .wide = wide_,
              .rows = launch.batch.num_rows,
              .branches = config_.branches});
}

void TextModel::mix(const ops::MixerWeights& weights, const Launch& launch) {
  ops_.mixer({.wide = wide_,
              .weights = weights,
              .mixed = mixed_,
              .inject = inject_,
              .rows = launch.batch.num_rows,
              .branches = config_.branches,
              .hidden = config_.hidden,
              .eps = config_.eps,
              .role = role_});
}

void TextModel::combine(const Launch& launch) {
  ops_.combine({.wide = wide_,
                .out = out_,
                .inject = inject_,
                .rows = launch.batch.num_rows,
                .branches = config_.branches,
                .hidden = config_.hidden});
}

/// Final mixer of the rows whose logits are wanted; keeps the last wide row of each sequence.
void TextModel::finish(const Launch& launch) {
  const auto wide = static_cast<size_t>(config_.wide());
  const size_t offset = layout_.offset(StatePart::kWideResidual, 0);
  for (const ops::RowSpan& span : launch.batch.spans) {
    if (span.num_rows == 0) continue;
    const auto last = static_cast<size_t>(span.row_begin + span.num_rows - 1);
    std::memcpy(span.slot + offset, wide_ + last * wide, wide * sizeof(float));
  }
  const auto count = static_cast<int>(launch.logit_rows.size());
  if (count == 0) return;
  block_arena_.reset();
  auto* selected = block_arena_.take<float>(launch.logit_rows.size() * wide);
  for (size_t entry = 0; entry < launch.logit_rows.size(); ++entry) {
    const auto row = static_cast<size_t>(launch.logit_rows[entry]);
    std::memcpy(selected + entry * wide, wide_ + row * wide, wide * sizeof(float));
  }
  ops_.mixer({.wide = selected,
              .weights = weights_.final_mixer,
              .mixed = hidden_,
              .inject = nullptr,
              .rows = count,
              .branches = config_.branches,
              .hidden = config_.hidden,
              .eps = config_.eps,
              .role = role_});
  if (launch.tap != nullptr) launch.tap->values("final_hidden", 0, hidden_, count, config_.hidden);
}

void TextModel::logits(int first, int count, float* out) {
  if (count == 0) return;
  const ops::LinearPart head{.weight = weights_.lm_head, .y = out};
  ops_.linear({.x = hidden_ + static_cast<size_t>(first) * static_cast<size_t>(config_.hidden),
               .parts = {&head, 1},
               .rows = count,
               .role = role_});
}

/// Last step of a launch: the ids of these rows become history for the n-gram hash of later ones.
void TextModel::store_tokens(const Launch& launch) {
  const ops::RingRef ring = layout_.ring(StatePart::kTokenIds, 0);
  for (const ops::RowSpan& span : launch.batch.spans) {
    for (int row = std::max(0, span.num_rows - ring.slots); row < span.num_rows; ++row) {
      const int64_t id = launch.ids[static_cast<size_t>(span.row_begin + row)];
      std::memcpy(ring.entry(span.slot, span.position + row), &id, sizeof id);
    }
  }
}

}  // namespace tessera
