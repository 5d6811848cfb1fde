// SPDX-License-Identifier: Apache-2.0
// Launches of the trunk and of the draft layer: pages, spans, positions, and what is committed.
#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>

#include "runtime/loaded_model.h"
#include "runtime/scheduler.h"

namespace tessera {
namespace {

/// Text: all three axes advance together.
void append_positions(int64_t first, size_t rows, std::vector<int32_t>& positions) {
  for (size_t row = 0; row < rows; ++row) {
    const auto position = static_cast<int32_t>(first + static_cast<int64_t>(row));
    positions.insert(positions.end(), {position, position, position});
  }
}

}  // namespace

Result<void> LoadedModel::check_ids(std::span<const int32_t> ids) const {
  const auto bad = std::find_if(
      ids.begin(), ids.end(), [&](int32_t id) { return id < 0 || id >= parts_.config.vocab_size; });
  if (bad == ids.end()) return {};
  return fail({.code = Errc::kInvalidArgument,
               .what = "token id outside the vocabulary",
               .where = "index " + std::to_string(bad - ids.begin()),
               .expected = "0 to " + std::to_string(parts_.config.vocab_size - 1),
               .found = std::to_string(*bad)});
}

/// Pages that only this sequence holds, for rows from `first` to before `end`.
Result<void> LoadedModel::prepare_rows(SequenceId sequence, int64_t first, int64_t end) {
  if (auto status = store_->reserve(sequence, end); !status) return status;
  return store_->prepare_write(sequence, first);
}

Result<void> LoadedModel::launch(std::span<const SequenceRows> sequences, ops::Role role,
                                 std::span<const int32_t> logit_rows, bool verify, Tap* tap) {
  for (const SequenceRows& rows : sequences) {
    if (auto status = check_ids(rows.ids); !status) return status;
    const int64_t length = store_->length(rows.sequence);
    const auto end = length + static_cast<int64_t>(rows.ids.size());
    if (auto status = prepare_rows(rows.sequence, length, end); !status) return status;
  }
  std::vector<ops::RowSpan> spans;
  std::vector<int32_t> ids;
  std::vector<int32_t> positions;
  for (const SequenceRows& rows : sequences) {
    spans.push_back(store_->span(rows.sequence, static_cast<int>(ids.size()),
                                 static_cast<int>(rows.ids.size())));
    ids.insert(ids.end(), rows.ids.begin(), rows.ids.end());
    append_positions(spans.back().position, rows.ids.size(), positions);
  }
  model_->forward(
      {.batch = {.spans = spans, .num_rows = static_cast<int>(ids.size()), .role = role},
       .ids = ids,
       .positions = positions,
       .logit_rows = logit_rows,
       .budget_blocks = budget_blocks_,
       .verify = verify,
       .tap = tap});
  return {};
}

Result<void> LoadedModel::run(std::span<const SequenceRows> sequences, ops::Role role,
                              std::span<const int32_t> logit_rows, Tap* tap) {
  for (const SequenceRows& rows : sequences) settle(rows.sequence);
  if (auto status = launch(sequences, role, logit_rows, false, tap); !status) return status;
  for (const SequenceRows& rows : sequences) store_->commit(rows.sequence, rows.ids);
  return {};
}

Result<void> LoadedModel::prefill(SequenceId sequence, std::span<const int32_t> ids, Tap* tap) {
  if (ids.empty())
    return fail({.code = Errc::kInvalidArgument,
                 .what = "empty prompt",
                 .expected = "at least one token",
                 .found = "none"});
  size_t done = 0;
  while (done < ids.size()) {
    const int rows = prefill_rows(store_->length(sequence), static_cast<int64_t>(ids.size() - done),
                                  options_.prefill_chunk);
    const SequenceRows work{.sequence = sequence,
                            .ids = ids.subspan(done, static_cast<size_t>(rows))};
    done += static_cast<size_t>(rows);
    const int32_t last_row = rows - 1;
    const size_t wanted = done == ids.size() ? 1 : 0;
    auto status = run({&work, 1}, ops::Role::kPrefill, {&last_row, wanted}, tap);
    if (!status) return status;
  }
  return {};
}

Result<void> LoadedModel::verify(std::span<const SequenceRows> sequences,
                                 std::span<const int32_t> logit_rows) {
  assert(has_draft());
  return launch(sequences, ops::Role::kDecode, logit_rows, true, nullptr);
}

void LoadedModel::accept(const SequenceRows& rows, int first_row, int accepted) {
  assert(accepted > 0 && static_cast<size_t>(accepted) <= rows.ids.size());
  const auto kept = static_cast<size_t>(accepted);
  if (kept < rows.ids.size())
    model_->keep_wide_row(first_row + accepted - 1, store_->slot(rows.sequence));
  store_->commit(rows.sequence, rows.ids.first(kept));
  set_pending(rows.sequence, accepted);
}

/// A DraftCounts in the backend's memory.
std::byte* LoadedModel::draft_counts(SequenceId sequence) const {
  return store_->slot(sequence) + layout_->offset(StatePart::kPendingDrafts, 0);
}

void LoadedModel::set_pending(SequenceId sequence, int rows) {
  const int32_t count = rows;
  ops_->memory().copy_in(draft_counts(sequence) + offsetof(DraftCounts, accepted_rows), &count,
                         sizeof count);
  store_->set_pending_rows(sequence, rows);
}

void LoadedModel::settle(SequenceId sequence) {
  if (store_->pending_rows(sequence) == 0) return;
  const ops::RowSpan nothing = store_->span(sequence, 0, 0);
  model_->apply_pending({.spans = {&nothing, 1}, .num_rows = 0, .role = ops::Role::kDecode});
  set_pending(sequence, 0);
}

std::shared_ptr<const StateSnapshot> LoadedModel::snapshot(SequenceId sequence) {
  settle(sequence);
  return store_->snapshot(sequence);
}

Result<void> LoadedModel::draft(std::span<const DraftRows> sequences, const DraftRun& how) {
  assert(has_draft());
  for (const DraftRows& rows : sequences) {
    const auto end = rows.position + static_cast<int64_t>(rows.next_ids.size());
    if (auto status = prepare_rows(rows.sequence, rows.position, end); !status) return status;
  }
  std::vector<ops::RowSpan> spans;
  std::vector<int32_t> ids, positions, source_rows;
  for (const DraftRows& rows : sequences) {
    const size_t count = rows.next_ids.size();
    spans.push_back(store_->span_at(rows.sequence, rows.position, static_cast<int>(ids.size()),
                                    static_cast<int>(count)));
    ids.insert(ids.end(), rows.next_ids.begin(), rows.next_ids.end());
    append_positions(rows.position, count, positions);
    for (size_t row = 0; row < count; ++row)
      source_rows.push_back(rows.first_source + static_cast<int>(row));
  }
  model_->draft(
      {.batch = {.spans = spans, .num_rows = static_cast<int>(ids.size()), .role = how.role},
       .ids = ids,
       .positions = positions,
       .source_rows = source_rows,
       .source = how.source,
       .selection = how.selection,
       .cache_only = how.cache_only,
       .budget_blocks = budget_blocks_,
       .tap = how.tap});
  return {};
}

Result<void> LoadedModel::begin_round(std::span<const SequenceRows> sequences,
                                      std::span<const ops::RoundSequence> settings,
                                      const RoundShape& shape) {
  std::vector<ops::RowSpan> spans;
  std::vector<int32_t> ids;
  for (const SequenceRows& rows : sequences) {
    if (auto status = check_ids(rows.ids); !status) return status;
    if (!shape.verify) settle(rows.sequence);
    spans.push_back(store_->span(rows.sequence, static_cast<int>(ids.size()),
                                 static_cast<int>(rows.ids.size())));
    ids.insert(ids.end(), rows.ids.begin(), rows.ids.end());
  }
  round_ = ops_->begin_round({.batch = {.spans = spans,
                                        .num_rows = static_cast<int>(ids.size()),
                                        .role = ops::Role::kDecode},
                              .ids = ids,
                              .sequences = settings});
  round_shape_ = shape;
  repeat_round();
  return {};
}

void LoadedModel::repeat_round() {
  model_->round(round_, round_shape_, budget_blocks_);
  ops_->end_round();
}

void LoadedModel::take_round(SequenceId sequence, std::span<const int32_t> ids) {
  store_->commit(sequence, ids);
  if (has_draft())
    store_->set_pending_rows(sequence, round_shape_.verify ? static_cast<int>(ids.size()) : 0);
}

int64_t LoadedModel::draft_rows(SequenceId sequence) const {
  int64_t rows = 0;
  ops_->memory().copy_out(&rows, draft_counts(sequence) + offsetof(DraftCounts, draft_rows),
                          sizeof rows);
  return rows;
}

void LoadedModel::set_draft_rows(SequenceId sequence, int64_t rows) {
  ops_->memory().copy_in(draft_counts(sequence) + offsetof(DraftCounts, draft_rows), &rows,
                         sizeof rows);
}

}  // namespace tessera
