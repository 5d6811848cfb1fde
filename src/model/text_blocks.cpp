// SPDX-License-Identifier: Apache-2.0
// The blocks of a layer: n-gram memory, Gated DeltaNet, sparse attention, mixture of experts.
#include <array>
#include <cstring>

#include "model/ngram.h"
#include "model/text_model.h"

namespace tessera {

/// Id of the token `lag` places before a row, from this launch or from the ring; -1 before the
/// start.
int32_t TextModel::token_before(const Launch& launch, const ops::RowSpan& span, int row_in_span,
                                int lag) const {
  const int row = row_in_span - lag;
  if (row >= 0) return launch.ids[static_cast<size_t>(span.row_begin + row)];
  const int64_t position = span.position + row;
  if (position < 0) return -1;
  int64_t id = 0;
  std::memcpy(&id, layout_.ring(StatePart::kTokenIds, 0).entry(span.slot, position), sizeof id);
  return static_cast<int32_t>(id);
}

void TextModel::run_ple(int layer, const Launch& launch) {
  const PleWeights& weights = weights_.ple[static_cast<size_t>(config_.ple_index(layer))];
  const PleConfig& ple = config_.ple;
  const int rows = launch.batch.num_rows;
  const int heads = ple.heads();
  block_arena_.reset();
  auto* table_rows =
      block_arena_.take<int64_t>(static_cast<size_t>(rows) * static_cast<size_t>(heads));
  std::vector<int32_t> history;
  for (const ops::RowSpan& span : launch.batch.spans) {
    for (int row = 0; row < span.num_rows; ++row) {
      history.clear();
      for (int lag = ple.ngram_size - 1; lag >= 0; --lag) {
        const int32_t id = token_before(launch, span, row, lag);
        if (id >= 0) history.push_back(id);
      }
      const auto at = static_cast<size_t>(span.row_begin + row) * static_cast<size_t>(heads);
      ngram_rows(weights.hash, history, table_rows + at);
    }
  }
  if (launch.tap != nullptr) launch.tap->ngram(layer, table_rows, rows, heads);

  const auto row_count = static_cast<size_t>(rows);
  auto* embedded = block_arena_.take<float>(row_count * static_cast<size_t>(ple.embed_dim));
  auto* key = block_arena_.take<float>(row_count * static_cast<size_t>(config_.wide()));
  auto* value = block_arena_.take<float>(row_count * static_cast<size_t>(config_.hidden));
  float* delta = launch.tap == nullptr
                     ? nullptr
                     : block_arena_.take<float>(row_count * static_cast<size_t>(config_.wide()));
  ops_.ngram_gather({.table_rows = table_rows,
                     .table = &weights.table,
                     .out = embedded,
                     .rows = rows,
                     .heads = heads});
  const std::array parts{ops::LinearPart{weights.key, key}, ops::LinearPart{weights.value, value}};
  ops_.linear({.x = embedded, .parts = parts, .rows = rows, .role = role_});
  ops_.ple_mix({.key = key,
                .value = value,
                .norm_key = weights.norm_key,
                .norm_query = weights.norm_query,
                .norm_conv = weights.norm_conv,
                .conv_weight = weights.conv,
                .wide = wide_,
                .delta = delta,
                .batch = launch.batch,
                .conv_ring = layout_.ring(StatePart::kPleConv, layer),
                .branches = config_.branches,
                .hidden = config_.hidden,
                .conv_kernel = ple.conv_kernel,
                .dilation = ple.ngram_size,
                .eps = config_.eps});
  if (delta != nullptr) launch.tap->values("ple", layer, delta, rows, config_.wide());
}

void TextModel::run_gdn(int layer, const Launch& launch) {
  const GdnWeights& weights = weights_.layers[static_cast<size_t>(layer)].gdn;
  const ops::GdnShape& shape = config_.gdn;
  const auto rows = static_cast<size_t>(launch.batch.num_rows);
  const auto value_width =
      static_cast<size_t>(shape.value_heads) * static_cast<size_t>(shape.value_dim);
  const auto value_heads = static_cast<size_t>(shape.value_heads);
  block_arena_.reset();
  auto* qkv = block_arena_.take<float>(rows * static_cast<size_t>(shape.channels()));
  auto* z = block_arena_.take<float>(rows * value_width);
  auto* a = block_arena_.take<float>(rows * value_heads);
  auto* b = block_arena_.take<float>(rows * value_heads);
  auto* normed = block_arena_.take<float>(rows * value_width);
  const std::array in_parts{ops::LinearPart{weights.in_qkv, qkv}, ops::LinearPart{weights.in_z, z},
                            ops::LinearPart{weights.in_a, a}, ops::LinearPart{weights.in_b, b}};
  ops_.linear({.x = mixed_, .parts = in_parts, .rows = launch.batch.num_rows, .role = role_});
  ops_.gdn({.shape = shape,
            .qkv = qkv,
            .z = z,
            .a = a,
            .b = b,
            .conv_weight = weights.conv,
            .a_log = weights.a_log,
            .dt_bias = weights.dt_bias,
            .norm = weights.norm,
            .gate = config_.gdn_gate,
            .eps = config_.eps,
            .batch = launch.batch,
            .conv_ring = layout_.ring(StatePart::kGdnConv, layer),
            .matrix_offset = layout_.offset(StatePart::kGdnMatrix, layer),
            .out = normed});
  const ops::LinearPart out{weights.out, out_};
  ops_.linear({.x = normed, .parts = {&out, 1}, .rows = launch.batch.num_rows, .role = role_});
}

ops::QsaCache TextModel::qsa_cache(int layer) const {
  return {.keys = layout_.page(StatePart::kKeys, layer, pool_),
          .values = layout_.page(StatePart::kValues, layer, pool_),
          .index_keys = layout_.page(StatePart::kIndexKeys, layer, pool_),
          .raw_keys = layout_.ring(StatePart::kRawIndexKeys, layer),
          .positions = layout_.ring(StatePart::kPositions, layer)};
}

void TextModel::run_qsa(int layer, const Launch& launch) {
  const QsaWeights& weights = weights_.layers[static_cast<size_t>(layer)].qsa;
  const ops::QsaShape& shape = config_.qsa;
  const int rows = launch.batch.num_rows;
  const auto row_count = static_cast<size_t>(rows);
  const auto head_dim = static_cast<size_t>(shape.head_dim);
  const auto query_width = static_cast<size_t>(shape.heads) * head_dim;
  const auto kv_width = static_cast<size_t>(shape.kv_heads) * head_dim;
  const auto index_dim = static_cast<size_t>(shape.index_dim);
  const auto index_heads = static_cast<size_t>(shape.index_heads);
  block_arena_.reset();
  auto* q_gate = block_arena_.take<float>(row_count * 2 * query_width);
  auto* k = block_arena_.take<float>(row_count * kv_width);
  auto* v = block_arena_.take<float>(row_count * kv_width);
  auto* index_qk = block_arena_.take<float>(row_count * (index_heads + 1) * index_dim);
  auto* q = block_arena_.take<float>(row_count * query_width);
  auto* index_q = block_arena_.take<float>(row_count * index_heads * index_dim);
  auto* blocks = block_arena_.take<int32_t>(row_count * static_cast<size_t>(launch.budget_blocks));
  auto* counts = block_arena_.take<int32_t>(row_count);
  auto* attended = block_arena_.take<float>(row_count * query_width);

  const std::array in_parts{ops::LinearPart{weights.q_gate, q_gate}, ops::LinearPart{weights.k, k},
                            ops::LinearPart{weights.v, v},
                            ops::LinearPart{weights.index_qk, index_qk}};
  ops_.linear({.x = mixed_, .parts = in_parts, .rows = rows, .role = role_});
  const ops::QsaCache cache = qsa_cache(layer);
  ops_.qsa_front({.shape = shape,
                  .rope = {.inv_freq = config_.rope.inv_freq.data(),
                           .axis = config_.rope.axis.data(),
                           .attention_scale = config_.rope.attention_scale},
                  .cache = cache,
                  .q_gate = q_gate,
                  .k = k,
                  .v = v,
                  .index_qk = index_qk,
                  .positions = launch.positions.data(),
                  .q_norm = weights.q_norm,
                  .k_norm = weights.k_norm,
                  .index_q_norm = weights.index_q_norm,
                  .index_k_norm = weights.index_k_norm,
                  .eps = config_.eps,
                  .batch = launch.batch,
                  .q = q,
                  .index_q = index_q});
  ops_.qsa_select({.shape = shape,
                   .cache = cache,
                   .index_q = index_q,
                   .budget_blocks = launch.budget_blocks,
                   .batch = launch.batch,
                   .blocks = blocks,
                   .counts = counts});
  if (launch.tap != nullptr)
    launch.tap->selection(layer, blocks, counts, rows, launch.budget_blocks);
  ops_.qsa_attend({.shape = shape,
                   .cache = cache,
                   .q = q,
                   .q_gate = q_gate,
                   .blocks = blocks,
                   .counts = counts,
                   .budget_blocks = launch.budget_blocks,
                   .batch = launch.batch,
                   .out = attended});
  const ops::LinearPart out{weights.out, out_};
  ops_.linear({.x = attended, .parts = {&out, 1}, .rows = rows, .role = role_});
}

void TextModel::run_moe(int layer, const Launch& launch) {
  const MoeWeights& weights = weights_.layers[static_cast<size_t>(layer)].moe;
  const MoeConfig& moe = config_.moe;
  const int rows = launch.batch.num_rows;
  const auto row_count = static_cast<size_t>(rows);
  const auto selected = row_count * static_cast<size_t>(moe.top_k);
  block_arena_.reset();
  auto* logits = block_arena_.take<float>(row_count * static_cast<size_t>(moe.num_experts));
  auto* shared_logit = block_arena_.take<float>(row_count);
  auto* ids = block_arena_.take<int32_t>(selected);
  auto* expert_weights = block_arena_.take<float>(selected);
  const std::array parts{ops::LinearPart{weights.router, logits},
                         ops::LinearPart{weights.shared_gate, shared_logit}};
  ops_.linear({.x = mixed_, .parts = parts, .rows = rows, .role = role_});
  ops_.router({.logits = logits,
               .ids = ids,
               .weights = expert_weights,
               .rows = rows,
               .num_experts = moe.num_experts,
               .top_k = moe.top_k,
               .normalize = moe.normalize});
  if (launch.tap != nullptr) {
    launch.tap->values("router_logits", layer, logits, rows, moe.num_experts);
    launch.tap->experts(layer, ids, rows, moe.top_k);
  }
  ops_.experts({.x = mixed_,
                .ids = ids,
                .weights = expert_weights,
                .shared_logit = shared_logit,
                .experts = weights.experts,
                .shared = weights.shared,
                .out = out_,
                .rows = rows,
                .top_k = moe.top_k,
                .role = role_});
}

}  // namespace tessera
