// SPDX-License-Identifier: Apache-2.0
// A model ready to run: config, weights, backend, state store and the forward pass, wired together.
// One thread at a time may use it; the engine owns the thread.
#pragma once

#include <tessera/engine.h>
#include <tessera/error.h>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/state_layout.h"
#include "model/text_model.h"
#include "model/weights.h"
#include "runtime/sequence_store.h"
#include "runtime/state_file.h"

namespace tessera {

/// New rows of one sequence in a launch.
struct SequenceRows {
  SequenceId sequence{};
  std::span<const int32_t> ids{};
};

/// Rows of the draft layer of one sequence: wide rows of the tokens from `position` on, each with
/// the id of the token after it.
struct DraftRows {
  SequenceId sequence{};
  int64_t position = 0;
  std::span<const int32_t> next_ids{};
  int first_source = 0;  // the row of the source that the first one reads; the others follow it
};

struct DraftRun {
  ops::Role role = ops::Role::kDecode;
  DraftSource source = DraftSource::kTrunk;
  DraftSelection selection = DraftSelection::kFresh;
  bool cache_only = false;
  Tap* tap = nullptr;
};

/// Parts that do not come from a folder: synthetic models, tests.
struct ModelParts {
  ModelConfig config{};
  ModelWeights weights{};
  GenerationDefaults defaults{};
};

class LoadedModel {
 public:
  static Result<std::unique_ptr<LoadedModel>> load(const EngineOptions& options);
  static Result<std::unique_ptr<LoadedModel>> from_parts(ModelParts parts,
                                                         const EngineOptions& options);

  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  /// Absorbs the rows: pages, forward pass, committed lengths. `logit_rows` index rows of the
  /// launch; their logits are then available from `logits`. Errors: kOutOfMemory (pages), nothing
  /// absorbed.
  Result<void> run(std::span<const SequenceRows> sequences, ops::Role role,
                   std::span<const int32_t> logit_rows, Tap* tap = nullptr);

  /// Reads a prompt in launches of at most `prefill_chunk` rows; logits of its last row remain.
  Result<void> prefill(SequenceId sequence, std::span<const int32_t> ids, Tap* tap = nullptr);

  /// Logits [count, vocab] of entries first .. first + count - 1 of the last launch's `logit_rows`.
  void logits(int first, int count, float* out) { model_->logits(first, count, out); }

  /// Draws the tokens of those entries, one for each of args.rows.
  void sample(int first, const ops::SampleArgs& args) { model_->sample(first, args); }

  /// Whether there is a draft layer, with weights, state and a backend that runs it.
  bool has_draft() const { return parts_.weights.draft.has_value(); }
  /// Why there is none.
  const std::string& draft_note() const { return draft_note_; }

  /// As `run` in decode role, but nothing is committed: each sequence waits for `accept`, and the
  /// DeltaNet matrices absorb the accepted rows in the next launch.
  Result<void> verify(std::span<const SequenceRows> sequences, std::span<const int32_t> logit_rows);
  /// The first `accepted` (at least 1) rows of the last verify launch are part of the sequence;
  /// `first_row` is the first of `rows` in that launch.
  void accept(const SequenceRows& rows, int first_row, int accepted);
  /// Lets the DeltaNet matrices absorb what was accepted.
  void settle(SequenceId sequence);
  /// A snapshot of the settled state.
  std::shared_ptr<const StateSnapshot> snapshot(SequenceId sequence);

  /// Runs rows through the draft layer; they may lie beyond the committed length. Errors:
  /// kOutOfMemory (pages), nothing written.
  Result<void> draft(std::span<const DraftRows> sequences, const DraftRun& how);
  /// [count, vocab], with a shortlist [count, shortlist].
  void draft_logits(int first, int count, float* out) { model_->draft_logits(first, count, out); }
  /// Draws a token from each row of the last `draft`.
  void sample_drafts(const ops::SampleArgs& args) { model_->sample_drafts(args); }
  /// RoundSequence::draft_vocab of a sequence that draws ids below `valid_vocab`.
  int draft_vocab(int valid_vocab) const { return model_->draft_vocab(valid_vocab); }
  /// Rows of the draft layer that the state holds, counted from the start: the last one was made
  /// with the token that was expected to follow. Part of the state, so a snapshot keeps it.
  int64_t draft_rows(SequenceId sequence) const;
  void set_draft_rows(SequenceId sequence, int64_t rows);

  /// Starts a round that needs no host between its launches, and its report: rows of sequences that
  /// have pages for them and for what is drafted, those that run the draft layer first. Without
  /// drafts among the rows nothing may be left pending afterwards. Errors: kInvalidArgument.
  Result<void> begin_round(std::span<const SequenceRows> sequences,
                           std::span<const ops::RoundSequence> settings, const RoundShape& shape);
  /// The next one, of the rows that the last one left.
  void repeat_round();
  /// Waits for the oldest round whose report was not read.
  ops::RoundReport read_round() { return ops_->read_round(); }
  /// Makes rows that a report kept part of the sequence, which has absorbed them already.
  void take_round(SequenceId sequence, std::span<const int32_t> ids);

  /// Routes all ops through another backend (measuring), for as long as it lives.
  void replace_ops(ops::Ops& ops);

  const EngineOptions& options() const { return options_; }
  const ModelConfig& config() const { return parts_.config; }
  const ModelWeights& weights() const { return parts_.weights; }
  const GenerationDefaults& defaults() const { return parts_.defaults; }
  const StateLayout& layout() const { return *layout_; }
  SequenceStore& store() { return *store_; }
  const SequenceStore& store() const { return *store_; }
  ops::Ops& ops() { return *ops_; }
  int budget_blocks() const { return budget_blocks_; }
  int max_context() const { return max_context_; }
  /// Everything a saved state depends on.
  StateIdentity state_identity() const;
  ModelInfo info() const;

 private:
  LoadedModel() = default;
  Result<void> make_store();
  Result<void> warm_up();
  void draw_any(size_t rows);
  Result<void> warm_up_drafts(std::span<const SequenceRows> decoded);
  Result<void> warm_up_round(std::span<const SequenceRows> sequences);
  Result<void> check_ids(std::span<const int32_t> ids) const;
  Result<void> prepare_rows(SequenceId sequence, int64_t first, int64_t end);
  Result<void> launch(std::span<const SequenceRows> sequences, ops::Role role,
                      std::span<const int32_t> logit_rows, bool verify, Tap* tap);
  std::byte* draft_counts(SequenceId sequence) const;
  void set_pending(SequenceId sequence, int rows);

  EngineOptions options_{};
  std::shared_ptr<ops::Ops> ops_{};  // first: its memory holds the rest, and states that outlive it
  ModelParts parts_{};
  std::unique_ptr<StateLayout> layout_{};
  std::unique_ptr<SequenceStore> store_{};
  std::unique_ptr<TextModel> model_{};
  ops::RoundState round_{};
  RoundShape round_shape_{};
  std::string draft_note_{};
  int budget_blocks_ = 0;
  int max_context_ = 0;
};

}  // namespace tessera
