// SPDX-License-Identifier: Apache-2.0
// The draft layer (MTP) over the trunk's blocks, and what a verify launch leaves to be applied.
#include <algorithm>
#include <array>
#include <cassert>

#include "model/text_model.h"

namespace tessera {
namespace {

ops::StepKind draft_step(const DraftLaunch& launch) {
  if (launch.cache_only) return ops::StepKind::kDraftCache;
  switch (launch.selection) {
    case DraftSelection::kFresh: return ops::StepKind::kDraft;
    case DraftSelection::kKept: return ops::StepKind::kDraftKept;
    case DraftSelection::kContinued: return ops::StepKind::kDraftChain;
  }
  return ops::StepKind::kDraft;
}

}  // namespace

void TextModel::apply_pending(const ops::RowBatch& batch) {
  assert(batch.num_rows == 0 && layout_.pending_rows() > 0);
  ops_.begin({.batch = batch});
  for (int layer = 0; layer < config_.num_layers(); ++layer) {
    if (config_.layers[static_cast<size_t>(layer)] != LayerKind::kGdn) continue;
    ops::GdnArgs args = gdn_constants(layer);
    args.batch = batch;
    args.verify = true;
    ops_.gdn(args);
  }
}

void TextModel::keep_wide_row(int row, std::byte* slot) {
  const size_t bytes = wide_bytes(1);
  ops_.memory().copy(slot + layout_.offset(StatePart::kWideResidual, 0),
                     static_cast<const std::byte*>(trunk_.wide) + static_cast<size_t>(row) * bytes,
                     bytes);
}

size_t TextModel::wide_bytes(int rows) const {
  return static_cast<size_t>(rows) * static_cast<size_t>(config_.wide()) *
         dtype_bytes(traits_.activation);
}

/// The branches stay where they are from one launch to the next: a chain reads the last ones.
void TextModel::hold_draft_wide(int rows) {
  const size_t bytes = wide_bytes(rows);
  if (bytes > draft_wide_.bytes()) {
    ops_.forget_repeats();  // what was recorded writes to the old place
    draft_wide_ = MemoryBlock(ops_.memory(), bytes);
  }
  draft_.wide = draft_wide_.data();
}

void TextModel::reserve_draft(ops::Role role, int rows, int logit_rows) {
  pass_ = &draft_;
  pass_->arena.reset();
  block_arena_.reset();
  reserve_buffers(role, rows, logit_rows);
}

/// The op has read its rows before the first product writes new branches, so that a source may be
/// where the branches will be.
const void* TextModel::draft_source(const DraftLaunch& launch) {
  if (launch.source == DraftSource::kTrunk) return trunk_.wide;
  if (launch.source == DraftSource::kDraft) return draft_.wide;
  const size_t bytes = wide_bytes(1);
  auto* row = static_cast<std::byte*>(draft_.wide);
  for (const ops::RowSpan& span : launch.batch.spans) {
    assert(span.num_rows == 1);
    ops_.memory().copy(row, span.slot + layout_.offset(StatePart::kWideResidual, 0), bytes);
    row += bytes;
  }
  return draft_.wide;
}

/// Sizes of shared lists: first ones as much shorter as drafted tokens may complete blocks, so that
/// no list exceeds the budget that attention is planned for.
TextModel::ListBudget TextModel::list_budget(int budget) const {
  const int room = layout_.pending_rows() / config_.qsa.block + 1;
  const int kept = std::max(budget - room, 1);
  return {.kept = kept, .continued = kept + room};
}

/// Room for the selections of so many rows: those of first drafts, and those that go on from them.
void TextModel::hold_draft_lists(int rows, int budget) {
  if (rows <= draft_list_rows_) return;
  ops_.forget_repeats();  // what was recorded uses the old places
  draft_list_rows_ = rows;
  const ListBudget lists = list_budget(budget);
  const size_t entries =
      static_cast<size_t>(rows) * static_cast<size_t>(lists.kept + lists.continued + 2);
  draft_lists_ = MemoryBlock(ops_.memory(), entries * sizeof(int32_t));
}

/// The lists of a first draft stay as they are made; its chain has its own.
TextModel::Selecting TextModel::draft_selecting(DraftSelection selection, int budget) {
  if (selection == DraftSelection::kFresh) return {};
  const ListBudget lists = list_budget(budget);
  const ptrdiff_t rows = draft_list_rows_;
  auto* counts = reinterpret_cast<int32_t*>(draft_lists_.data());
  auto* blocks = counts + 2 * rows;
  const Lists made{.blocks = blocks, .counts = counts, .stride = lists.kept};
  const Lists extended{
      .blocks = blocks + rows * lists.kept, .counts = counts + rows, .stride = lists.continued};
  const Selecting how = selection == DraftSelection::kKept
                            ? Selecting{.to = made}
                            : Selecting{.from = last_lists_, .to = extended};
  last_lists_ = how.to;
  return how;
}

void TextModel::draft(const DraftLaunch& launch) {
  assert(weights_.draft.has_value());
  const int num_rows = launch.batch.num_rows;
  assert(launch.source != DraftSource::kDraft || wide_bytes(num_rows) <= draft_wide_.bytes());
  assert(launch.selection != DraftSelection::kContinued || num_rows <= draft_list_rows_);
  hold_draft_wide(num_rows);
  reserve_draft(launch.batch.role, num_rows, launch.cache_only ? 0 : num_rows);
  if (num_rows == 0) return;
  const void* source = draft_source(launch);
  pass_->inputs = ops_.begin({.batch = launch.batch,
                              .ids = launch.ids,
                              .positions = launch.positions,
                              .source_rows = launch.source_rows});
  Selecting how{.cache_only = launch.cache_only};
  if (!launch.cache_only) {
    if (launch.selection == DraftSelection::kKept) hold_draft_lists(num_rows, launch.budget_blocks);
    how = draft_selecting(launch.selection, launch.budget_blocks);
  }
  const Launch rows{.batch = launch.batch,
                    .ids = launch.ids,
                    .positions = launch.positions,
                    .budget_blocks = launch.budget_blocks,
                    .tap = launch.tap};
  if (pass_->role == ops::Role::kPrefill || launch.tap != nullptr)
    return run_draft(rows, source, how);
  const ops::StepKey key{.kind = draft_step(launch),
                         .num_spans = static_cast<int>(launch.batch.spans.size()),
                         .num_rows = launch.batch.num_rows,
                         .num_logit_rows = launch.cache_only ? 0 : launch.batch.num_rows,
                         .buffers = pass_->mixed,
                         .temporaries = block_arena_.base(),
                         .source = source,
                         .lists = how.from.blocks};
  ops_.repeat(key, [&] { run_draft(rows, source, how); });
}

void TextModel::run_draft(const Launch& launch, const void* source, const Selecting& how) {
  const DraftWeights& weights = *weights_.draft;
  const int layer = config_.num_layers();
  const int rows = launch.batch.num_rows;
  const auto row_count = static_cast<size_t>(rows);
  block_arena_.reset();
  auto* embedded = take(block_arena_, row_count * static_cast<size_t>(config_.hidden));
  auto* normed = take(block_arena_, row_count * static_cast<size_t>(config_.wide()));
  ops_.draft_input({.ids = pass_->inputs.ids,
                    .table = weights_.embed,
                    .wide = source,
                    .wide_rows = pass_->inputs.source_rows,
                    .norm_embedding = weights.norm_embedding,
                    .norm_hidden = weights.norm_hidden,
                    .eps = config_.eps,
                    .rows = rows,
                    .branches = config_.branches,
                    .embedded = embedded,
                    .normed = normed,
                    .inject = pass_->inject});
  const ops::LinearPart token{weights.embedding, pass_->out};
  ops_.linear({.x = embedded, .parts = {&token, 1}, .rows = rows, .role = pass_->role});
  // Every branch is a row of the same product.
  const ops::LinearPart branches{weights.hidden, pass_->wide};
  ops_.linear(
      {.x = normed, .parts = {&branches, 1}, .rows = rows * config_.branches, .role = pass_->role});
  ops_.combine(combine_into(weights.layer.attn_mixer.norm, rows));
  pass_->normed_is_current = traits_.combine_norms;

  mix(weights.layer.attn_mixer, launch);
  run_qsa(layer, weights.layer.qsa, launch, how);
  if (how.cache_only) return;
  ops_.combine(combine_into(weights.layer.mlp_mixer.norm, rows));
  pass_->normed_is_current = traits_.combine_norms;
  mix(weights.layer.mlp_mixer, launch);
  run_moe(layer, weights.layer.moe, nullptr, launch);
  tap_activations(launch, "layer", layer, pass_->wide, config_.wide());
  mix_final(weights.final_mixer, pass_->wide, rows);
  if (pass_->logits != nullptr) head(0, rows, pass_->logits);
}

void TextModel::draft_logits(int first, int count, float* out) {
  pass_ = &draft_;
  read_logits(first, count, out);
}

int TextModel::draft_vocab(int valid_vocab) const {
  const std::vector<int32_t>& listed = weights_.draft->shortlist;
  if (listed.empty()) return valid_vocab;
  return static_cast<int>(std::ranges::lower_bound(listed, valid_vocab) - listed.begin());
}

/// With a shortlist the op draws a place in it: ids ascend in both, so that the draw is that over
/// the listed tokens.
void TextModel::sample_drafts(ops::SampleArgs args) {
  pass_ = &draft_;
  const std::vector<int32_t>& listed = weights_.draft->shortlist;
  if (listed.empty()) return sample_rows(0, args);
  const auto place_of = [&](int32_t id) {
    return static_cast<int32_t>(std::ranges::lower_bound(listed, id) - listed.begin());
  };
  std::vector<ops::SampleRow> rows(args.rows.begin(), args.rows.end());
  std::vector<ops::LogitEdit> edits;
  for (ops::SampleRow& row : rows) {
    const auto wanted = args.edits.subspan(static_cast<size_t>(row.edits_begin),
                                           static_cast<size_t>(row.num_edits));
    row.edits_begin = static_cast<int>(edits.size());
    for (ops::LogitEdit edit : wanted) {
      if (!std::ranges::binary_search(listed, edit.token)) continue;
      edit.token = place_of(edit.token);
      edits.push_back(edit);
    }
    row.num_edits = static_cast<int>(edits.size()) - row.edits_begin;
    row.valid_vocab = draft_vocab(row.valid_vocab);
  }
  args.rows = rows;
  args.edits = edits;
  sample_rows(0, args);
  for (ops::SampledToken& result : args.results) {
    if (result.status == ops::SampleStatus::kNoToken) continue;
    result.token = listed[static_cast<size_t>(result.token)];
    for (int place = 0; place < result.num_top; ++place) {
      ops::RankedToken& ranked = result.top[static_cast<size_t>(place)];
      ranked.token = listed[static_cast<size_t>(ranked.token)];
    }
  }
}

}  // namespace tessera
