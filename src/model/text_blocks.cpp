// SPDX-License-Identifier: Apache-2.0
// The blocks of a layer: n-gram memory, Gated DeltaNet, sparse attention, mixture of experts.
#include <array>
#include <cstddef>

#include "model/text_model.h"

namespace tessera {

template <class T>
std::vector<T> TextModel::on_host(const T* data, size_t count) const {
  std::vector<T> copy(count);
  ops_.memory().copy_out(copy.data(), data, count * sizeof(T));
  return copy;
}

template std::vector<float> TextModel::on_host(const float*, size_t) const;
template std::vector<uint16_t> TextModel::on_host(const uint16_t*, size_t) const;

void TextModel::run_ple(int layer, const Launch& launch) {
  const PleWeights& weights = weights_.ple[static_cast<size_t>(config_.ple_index(layer))];
  const PleConfig& ple = config_.ple;
  const int rows = launch.batch.num_rows;
  const int heads = ple.heads();
  block_arena_.reset();
  const size_t entries = static_cast<size_t>(rows) * static_cast<size_t>(heads);
  auto* table_rows = block_arena_.take<int64_t>(entries);
  ops_.ngram_ids({.ids = pass_->inputs.ids,
                  .batch = launch.batch,
                  .token_ring = layout_.ring(StatePart::kTokenIds, 0),
                  .hash = &weights.hash,
                  .table_rows = table_rows});
  if (launch.tap != nullptr)
    launch.tap->ngram(layer, on_host(table_rows, entries).data(), rows, heads);

  const auto row_count = static_cast<size_t>(rows);
  auto* embedded = take(block_arena_, row_count * static_cast<size_t>(ple.embed_dim));
  auto* key = take(block_arena_, row_count * static_cast<size_t>(config_.wide()));
  auto* value = take(block_arena_, row_count * static_cast<size_t>(config_.hidden));
  void* delta = launch.tap == nullptr
                    ? nullptr
                    : take(block_arena_, row_count * static_cast<size_t>(config_.wide()));
  ops_.ngram_gather({.table_rows = table_rows,
                     .table = &weights.table,
                     .out = embedded,
                     .rows = rows,
                     .heads = heads});
  const std::array parts{ops::LinearPart{weights.key, key}, ops::LinearPart{weights.value, value}};
  ops_.linear({.x = embedded, .parts = parts, .rows = rows, .role = pass_->role});
  ops_.ple_mix({.key = key,
                .value = value,
                .norm_key = weights.norm_key,
                .norm_query = weights.norm_query,
                .norm_conv = weights.norm_conv,
                .conv_weight = weights.conv,
                .wide = pass_->wide,
                .delta = delta,
                .batch = launch.batch,
                .conv_ring = layout_.ring(StatePart::kPleConv, layer),
                .branches = config_.branches,
                .hidden = config_.hidden,
                .conv_kernel = ple.conv_kernel,
                .dilation = ple.ngram_size,
                .eps = config_.eps});
  pass_->normed_is_current = false;
  if (delta != nullptr) tap_activations(launch, "ple", layer, delta, config_.wide());
}

/// What of a GDN launch does not depend on its rows.
ops::GdnArgs TextModel::gdn_constants(int layer) const {
  const GdnWeights& weights = weights_.layers[static_cast<size_t>(layer)].gdn;
  ops::GdnArgs args{.shape = config_.gdn,
                    .conv_weight = weights.conv,
                    .a_log = weights.a_log,
                    .dt_bias = weights.dt_bias,
                    .norm = weights.norm,
                    .gate = config_.gdn_gate,
                    .eps = config_.eps,
                    .batch = {},
                    .conv_ring = layout_.ring(StatePart::kGdnConv, layer),
                    .matrix_offset = layout_.offset(StatePart::kGdnMatrix, layer)};
  if (layout_.pending_rows() > 0) {
    args.pending_offset = layout_.offset(StatePart::kPendingGdn, layer);
    args.pending_rows = layout_.pending_rows();
    args.accepted_offset =
        layout_.offset(StatePart::kPendingDrafts, 0) + offsetof(DraftCounts, accepted_rows);
  }
  return args;
}

void TextModel::run_gdn(int layer, const Launch& launch) {
  const GdnWeights& weights = weights_.layers[static_cast<size_t>(layer)].gdn;
  const ops::GdnShape& shape = config_.gdn;
  const auto rows = static_cast<size_t>(launch.batch.num_rows);
  const auto value_width =
      static_cast<size_t>(shape.value_heads) * static_cast<size_t>(shape.value_dim);
  const auto value_heads = static_cast<size_t>(shape.value_heads);
  block_arena_.reset();
  auto* qkv = take(block_arena_, rows * static_cast<size_t>(shape.channels()));
  auto* z = take(block_arena_, rows * value_width);
  auto* a = block_arena_.take<float>(rows * value_heads);
  auto* b = block_arena_.take<float>(rows * value_heads);
  auto* normed = take(block_arena_, rows * value_width);
  const std::array in_parts{ops::LinearPart{weights.in_qkv, qkv}, ops::LinearPart{weights.in_z, z},
                            ops::LinearPart{weights.in_a, a, ops::Output::kFloat},
                            ops::LinearPart{weights.in_b, b, ops::Output::kFloat}};
  ops_.linear(
      {.x = pass_->mixed, .parts = in_parts, .rows = launch.batch.num_rows, .role = pass_->role});
  ops::GdnArgs args = gdn_constants(layer);
  args.qkv = qkv;
  args.z = z;
  args.a = a;
  args.b = b;
  args.batch = launch.batch;
  args.out = normed;
  args.verify = launch.verify;
  ops_.gdn(args);
  const ops::LinearPart out{weights.out, pass_->out};
  ops_.linear(
      {.x = normed, .parts = {&out, 1}, .rows = launch.batch.num_rows, .role = pass_->role});
}

ops::QsaCache TextModel::qsa_cache(int layer) const {
  return {.keys = layout_.page(StatePart::kKeys, layer, pool_),
          .values = layout_.page(StatePart::kValues, layer, pool_),
          .index_keys = layout_.page(StatePart::kIndexKeys, layer, pool_),
          .raw_keys = layout_.ring(StatePart::kRawIndexKeys, layer),
          .positions = layout_.ring(StatePart::kPositions, layer)};
}

/// The blocks that each row attends to, by its query or as the row that it follows.
TextModel::Lists TextModel::select(const ops::QsaCache& cache, const void* index_q,
                                   const Launch& launch, const Selecting& how) {
  Lists lists = how.to;
  if (lists.blocks == nullptr) {
    const auto rows = static_cast<size_t>(launch.batch.num_rows);
    lists.stride = launch.budget_blocks;
    lists.blocks = block_arena_.take<int32_t>(rows * static_cast<size_t>(lists.stride));
    lists.counts = block_arena_.take<int32_t>(rows);
  }
  if (how.from.blocks != nullptr) {
    ops_.qsa_extend({.block = config_.qsa.block,
                     .source_rows = pass_->inputs.source_rows,
                     .from_blocks = how.from.blocks,
                     .from_counts = how.from.counts,
                     .from_stride = how.from.stride,
                     .batch = launch.batch,
                     .blocks = lists.blocks,
                     .counts = lists.counts,
                     .stride = lists.stride});
  } else {
    ops_.qsa_select({.shape = config_.qsa,
                     .cache = cache,
                     .index_q = index_q,
                     .budget_blocks = launch.budget_blocks,
                     .batch = launch.batch,
                     .blocks = lists.blocks,
                     .counts = lists.counts,
                     .max_context = max_context_});
  }
  return lists;
}

void TextModel::run_qsa(int layer, const QsaWeights& weights, const Launch& launch,
                        const Selecting& how) {
  const ops::QsaShape& shape = config_.qsa;
  const int rows = launch.batch.num_rows;
  const auto row_count = static_cast<size_t>(rows);
  const auto head_dim = static_cast<size_t>(shape.head_dim);
  const auto query_width = static_cast<size_t>(shape.heads) * head_dim;
  const auto kv_width = static_cast<size_t>(shape.kv_heads) * head_dim;
  const auto index_dim = static_cast<size_t>(shape.index_dim);
  const auto index_heads = static_cast<size_t>(shape.index_heads);
  block_arena_.reset();
  auto* q_gate = how.cache_only ? nullptr : take(block_arena_, row_count * 2 * query_width);
  auto* k = take(block_arena_, row_count * kv_width);
  auto* v = take(block_arena_, row_count * kv_width);
  auto* index_qk = take(block_arena_, row_count * (index_heads + 1) * index_dim);
  auto* q = how.cache_only ? nullptr : take(block_arena_, row_count * query_width);
  auto* index_q =
      how.cache_only ? nullptr : take(block_arena_, row_count * index_heads * index_dim);
  const std::array in_parts{ops::LinearPart{weights.q_gate, q_gate}, ops::LinearPart{weights.k, k},
                            ops::LinearPart{weights.v, v},
                            ops::LinearPart{weights.index_qk, index_qk}};
  const auto parts = std::span(in_parts).subspan(how.cache_only ? 1 : 0);
  ops_.linear({.x = pass_->mixed, .parts = parts, .rows = rows, .role = pass_->role});
  const ops::QsaCache cache = qsa_cache(layer);
  ops_.qsa_front({.shape = shape,
                  .rope = rope_,
                  .cache = cache,
                  .q_gate = q_gate,
                  .k = k,
                  .v = v,
                  .index_qk = index_qk,
                  .positions = pass_->inputs.positions,
                  .q_norm = weights.q_norm,
                  .k_norm = weights.k_norm,
                  .index_q_norm = weights.index_q_norm,
                  .index_k_norm = weights.index_k_norm,
                  .eps = config_.eps,
                  .batch = launch.batch,
                  .q = q,
                  .index_q = index_q});
  if (how.cache_only) return;
  auto* attended = take(block_arena_, row_count * query_width);
  const Lists lists = select(cache, index_q, launch, how);
  if (launch.tap != nullptr)
    launch.tap->selection(
        layer, on_host(lists.blocks, row_count * static_cast<size_t>(lists.stride)).data(),
        on_host(lists.counts, row_count).data(), rows, lists.stride);
  ops_.qsa_attend({.shape = shape,
                   .cache = cache,
                   .q = q,
                   .q_gate = q_gate,
                   .blocks = lists.blocks,
                   .counts = lists.counts,
                   .budget_blocks = lists.stride,
                   .batch = launch.batch,
                   .out = attended});
  const ops::LinearPart out{weights.out, pass_->out};
  ops_.linear({.x = attended, .parts = {&out, 1}, .rows = rows, .role = pass_->role});
}

void TextModel::run_moe(int layer, const MoeWeights& weights, const float* next_norm,
                        const Launch& launch) {
  const MoeConfig& moe = config_.moe;
  const int rows = launch.batch.num_rows;
  const auto row_count = static_cast<size_t>(rows);
  const auto selected = row_count * static_cast<size_t>(moe.top_k);
  block_arena_.reset();
  auto* logits = block_arena_.take<float>(row_count * static_cast<size_t>(moe.num_experts));
  auto* shared_logit = block_arena_.take<float>(row_count);
  auto* ids = block_arena_.take<int32_t>(selected);
  auto* expert_weights = block_arena_.take<float>(selected);
  ops_.router({.x = pass_->mixed,
               .gate = weights.router,
               .shared_gate = weights.shared_gate,
               .logits = logits,
               .shared_logit = shared_logit,
               .ids = ids,
               .weights = expert_weights,
               .rows = rows,
               .num_experts = moe.num_experts,
               .top_k = moe.top_k,
               .normalize = moe.normalize,
               .role = pass_->role});
  if (launch.tap != nullptr) {
    tap_values(launch, "router_logits", layer, logits, DType::kF32, rows, moe.num_experts);
    launch.tap->experts(layer, on_host(ids, selected).data(), rows, moe.top_k);
  }
  const ops::CombineArgs combine = combine_into(next_norm, rows);
  ops_.experts({.x = pass_->mixed,
                .ids = ids,
                .weights = expert_weights,
                .shared_logit = shared_logit,
                .experts = weights.experts,
                .shared = weights.shared,
                .out = pass_->out,
                .combine = &combine,
                .rows = rows,
                .top_k = moe.top_k,
                .role = pass_->role});
  pass_->normed_is_current = combine.normed != nullptr;
}

}  // namespace tessera
