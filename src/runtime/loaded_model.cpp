// SPDX-License-Identifier: Apache-2.0
// Checks the options, loads every part in order and runs launches.
#include "runtime/loaded_model.h"

#include <tessera/shortlist.h>

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "core/parallel.h"
#include "io/checkpoint.h"
#include "model/draft_head.h"
#include "model/weight_placement.h"
#include "runtime/backend.h"
#include "runtime/model_info.h"
#include "runtime/scheduler.h"
#include "runtime/scoped_sequence.h"

namespace tessera {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kHostPrefillChunk = 512;
/// Every launch reads every expert: on a device, rows are what hides that.
constexpr int kDevicePrefillChunk = 4096;

Result<void> check_options(const EngineOptions& options, const ModelConfig& config) {
  const auto invalid = [](const char* where, std::string expected, std::string found,
                          std::string hint) {
    return fail({.code = Errc::kInvalidArgument,
                 .what = "invalid engine option",
                 .where = where,
                 .expected = std::move(expected),
                 .found = std::move(found),
                 .hint = std::move(hint)});
  };
  if (options.threads < 0 || options.threads > kMaxThreads)
    return invalid("threads", "0 to " + std::to_string(kMaxThreads),
                   std::to_string(options.threads), "");
  if (options.prefill_chunk < 0 || options.prefill_chunk % ops::kPageTokens != 0)
    return invalid("prefill_chunk", "a multiple of " + std::to_string(ops::kPageTokens),
                   std::to_string(options.prefill_chunk), "0 lets the backend decide");
  if (!(options.memory_fraction > 0 && options.memory_fraction <= 1))
    return invalid("memory_fraction", "above 0, at most 1", std::to_string(options.memory_fraction),
                   "");
  if (options.max_sequences < 1)
    return invalid("max_sequences", "at least 1", std::to_string(options.max_sequences), "");
  if (options.max_context < 0 || options.max_context > config.max_positions)
    return invalid("max_context", "0 to " + std::to_string(config.max_positions),
                   std::to_string(options.max_context), "the model was made for no more positions");
  if (options.valid_vocab < 0 || options.valid_vocab > config.vocab_size)
    return invalid("valid_vocab", "0 to " + std::to_string(config.vocab_size),
                   std::to_string(options.valid_vocab),
                   "tokenizer.json and config.json belong to different models");
  if (options.indexer_budget < 0 || options.indexer_budget % config.qsa.block != 0)
    return invalid("indexer_budget", "a positive multiple of " + std::to_string(config.qsa.block),
                   std::to_string(options.indexer_budget),
                   "0 means the model's own " + std::to_string(config.indexer_budget));
  return {};
}

/// Why nothing is drafted; empty when the draft layer runs.
std::string why_no_draft(const EngineOptions& options, const ModelWeights& weights,
                         const ops::Traits& traits) {
  if (!weights.draft) return "the checkpoint has no mtp.* tensors";
  if (!traits.drafts) return "this backend has no draft layer";
  if (options.max_draft == 0) return "max_draft is 0";
  return {};
}

/// Cuts the draft head to the ids of the list, and the end-of-text ids of the model.
Result<void> apply_shortlist(const EngineOptions& options, ModelParts& parts,
                             const std::string& draft_note) {
  if (options.draft_shortlist.empty()) return {};
  if (!draft_note.empty())
    return fail({.code = Errc::kUnsupported,
                 .what = "a shortlist, and nothing to draft with",
                 .where = options.draft_shortlist,
                 .expected = "no shortlist",
                 .found = draft_note});
  Result<Shortlist> list = load_shortlist(options.draft_shortlist);
  if (!list) return fail(std::move(list.error()));
  const auto mismatch = [&](std::string expected, std::string found) {
    return fail({.code = Errc::kMismatch,
                 .what = "shortlist of another vocabulary",
                 .where = options.draft_shortlist,
                 .expected = std::move(expected),
                 .found = std::move(found),
                 .hint = "make one with tessera shortlist and this model"});
  };
  const auto most = static_cast<uint32_t>(parts.config.vocab_size);
  const auto valid = static_cast<uint32_t>(options.valid_vocab);
  if (valid > 0 ? list->vocab_size != valid : list->vocab_size > most)
    return mismatch(valid > 0 ? std::to_string(valid) + " tokens"
                              : "at most " + std::to_string(most) + " tokens",
                    std::to_string(list->vocab_size));
  if (options.vocabulary != 0 && list->vocabulary != options.vocabulary)
    return mismatch("the tokens of this model", "others");
  std::vector<int32_t>& ids = list->ids;
  const std::vector<int32_t>& ends = parts.defaults.eos_token_ids;
  ids.insert(ids.end(), ends.begin(), ends.end());
  std::ranges::sort(ids);
  const auto repeated = std::ranges::unique(ids);
  ids.erase(repeated.begin(), repeated.end());
  cut_draft_head(parts.weights, ids);
  return {};
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const EngineOptions& options) {
  Result<ModelConfig> config = load_model_config(options.model_dir);
  if (!config) return fail(std::move(config.error()));
  Result<GenerationDefaults> defaults = load_generation_config(options.model_dir, *config);
  if (!defaults) return fail(std::move(defaults.error()));
  if (auto status = check_options(options, *config); !status) return fail(status.error());
  auto checkpoint = open_checkpoint(options.model_dir);
  if (!checkpoint) return fail(std::move(checkpoint.error()));
  // On a device the copies take the time, and report it.
  const bool copies = options.device != "cpu";
  Result<ModelWeights> weights =
      bind_weights(*config, *checkpoint, copies ? nullptr : options.on_load_progress);
  if (!weights) return fail(std::move(weights.error()));
  return from_parts({.config = std::move(*config),
                     .weights = std::move(*weights),
                     .defaults = std::move(*defaults)},
                    options);
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::from_parts(ModelParts parts,
                                                             const EngineOptions& options) {
  if (auto status = check_options(options, parts.config); !status) return fail(status.error());
  std::unique_ptr<LoadedModel> model(new LoadedModel());
  model->options_ = options;
  model->options_.on_load_progress = {};  // it belongs to the caller of the load
  set_num_threads(options.threads);
  Result<std::unique_ptr<ops::Ops>> ops = make_backend(options);
  if (!ops) return fail(std::move(ops.error()));
  model->ops_ = std::move(*ops);
  const bool on_host = model->ops_->memory().on_host();
  if (options.prefill_chunk == 0)
    model->options_.prefill_chunk = on_host ? kHostPrefillChunk : kDevicePrefillChunk;
  const ModelConfig& config = parts.config;
  model->max_context_ = options.max_context > 0 ? options.max_context : config.max_positions;
  const int budget = options.indexer_budget > 0 ? options.indexer_budget : config.indexer_budget;
  // More blocks than the context has would only reserve memory.
  model->budget_blocks_ = std::min(budget, model->max_context_) / config.qsa.block;

  const Result<DType> cache = cache_dtype(options.cache_type, *model->ops_);
  if (!cache) return fail(cache.error());
  const ops::Traits traits = model->ops_->traits();
  model->draft_note_ = why_no_draft(options, parts.weights, traits);
  if (!model->draft_note_.empty()) parts.weights.draft.reset();
  if (auto status = apply_shortlist(options, parts, model->draft_note_); !status)
    return fail(std::move(status.error()));
  const bool wants_fp8 = options.draft_head == DraftHead::kFp8 ||
                         (options.draft_head == DraftHead::kAuto && options.ops == OpsKind::kFast);
  if (parts.weights.draft && wants_fp8) quantise_draft_head(parts.weights);
  Result<StateLayout> layout =
      StateLayout::make(config, {.cache = *cache,
                                 .index_key = traits.index_key,
                                 .activation = traits.activation,
                                 .max_draft = options.max_draft,
                                 .draft_layer = parts.weights.draft.has_value()});
  if (!layout) return fail(std::move(layout.error()));
  model->layout_ = std::make_unique<StateLayout>(std::move(*layout));
  try {
    parts.weights = place_weights(std::move(parts.weights), config, model->ops_->memory(),
                                  options.on_load_progress);
    model->parts_ = std::move(parts);
    if (auto status = model->make_store(); !status) return fail(std::move(status.error()));
    model->model_ = std::make_unique<TextModel>(model->parts_.config, model->parts_.weights,
                                                *model->layout_, *model->ops_,
                                                model->store_->pool().base(), model->max_context_);
    if (!on_host) {
      if (auto status = model->warm_up(); !status) return fail(std::move(status.error()));
    }
  } catch (const std::bad_alloc&) {
    return fail({.code = Errc::kOutOfMemory,
                 .what = "not enough memory for the model",
                 .where = options.device,
                 .found = std::to_string(model->ops_->memory().free_bytes()) + " bytes free",
                 .hint = "use a larger device or --device cpu"});
  }
  return model;
}

/// The largest prompt launch and the largest decode launch, once, drafts included: whatever memory
/// a launch may ever want is taken now, or the load fails, and no request pays for a first use.
Result<void> LoadedModel::warm_up() {
  const int most_rows = has_draft() ? options_.max_draft + 1 : 1;
  const auto rows_each = static_cast<size_t>(std::clamp(max_context_ - 1, 1, most_rows));
  const int room = max_context_ - static_cast<int>(rows_each);
  const std::vector<int32_t> ids(static_cast<size_t>(std::clamp(room, 1, options_.prefill_chunk)));
  const std::vector<int32_t> several(rows_each);
  std::vector<ScopedSequence> sequences;
  std::vector<SequenceRows> rows;
  for (int index = 0; index < options_.max_sequences; ++index) {
    Result<ScopedSequence> sequence = ScopedSequence::create(*store_);
    if (!sequence) return fail(std::move(sequence.error()));
    rows.push_back({.sequence = sequence->id(), .ids = several});
    sequences.push_back(std::move(*sequence));
  }
  const SequenceRows prompt{.sequence = rows.front().sequence, .ids = ids};
  const int32_t last_row = static_cast<int32_t>(ids.size()) - 1;
  if (auto status = run({&prompt, 1}, ops::Role::kPrefill, {&last_row, 1}); !status) return status;
  draw_any(1);
  if (has_draft()) {
    const DraftRows drafted{.sequence = prompt.sequence, .position = 0, .next_ids = ids};
    const DraftRun how{.role = ops::Role::kPrefill, .cache_only = true};
    if (auto status = draft({&drafted, 1}, how); !status) return status;
  }
  std::vector<int32_t> logit_rows(rows.size() * rows_each);
  std::iota(logit_rows.begin(), logit_rows.end(), 0);
  const auto status =
      has_draft() ? verify(rows, logit_rows) : run(rows, ops::Role::kDecode, logit_rows);
  if (!status) return status;
  draw_any(logit_rows.size());
  if (has_draft())
    if (auto drafted = warm_up_drafts(rows); !drafted) return drafted;
  return ops_->traits().rounds ? warm_up_round(rows) : status;
}

/// Tokens of the last launch that nobody reads.
void LoadedModel::draw_any(size_t rows) {
  const std::vector<ops::SampleRow> draws(rows, {.valid_vocab = parts_.config.vocab_size});
  std::vector<ops::SampledToken> results(rows);
  sample(0, {.rows = draws, .results = results});
}

/// Cache rows of everything that was verified, a live row of each sequence, and the next of a
/// chain.
Result<void> LoadedModel::warm_up_drafts(std::span<const SequenceRows> decoded) {
  std::vector<DraftRows> rows;
  int first_source = 0;
  for (const SequenceRows& each : decoded) {
    rows.push_back({.sequence = each.sequence,
                    .position = store_->length(each.sequence),
                    .next_ids = each.ids,
                    .first_source = first_source});
    first_source += static_cast<int>(each.ids.size());
  }
  if (auto status = draft(rows, {.cache_only = true}); !status) return status;
  for (DraftRows& each : rows) each.next_ids = each.next_ids.first(1);
  const bool share = options_.draft_share_selection;
  DraftRun how{.selection = share ? DraftSelection::kKept : DraftSelection::kFresh};
  if (auto status = draft(rows, how); !status) return status;
  for (size_t at = 0; at < rows.size(); ++at) rows[at].first_source = static_cast<int>(at);
  how.source = DraftSource::kDraft;
  if (share) how.selection = DraftSelection::kContinued;
  return draft(rows, how);
}

/// The largest round, for the state that it keeps on the device.
Result<void> LoadedModel::warm_up_round(std::span<const SequenceRows> sequences) {
  RoundShape shape{.verify = has_draft()};
  const int vocab = parts_.config.vocab_size;
  const ops::RoundSequence any{.draw = {.valid_vocab = vocab},
                               .draft_vocab = has_draft() ? draft_vocab(vocab) : 0,
                               .left = 1};
  const std::vector<ops::RoundSequence> settings(sequences.size(), any);
  if (has_draft()) {
    shape.lagging_spans = static_cast<int>(sequences.size());
    for (const SequenceRows& rows : sequences)
      shape.lagging_rows += static_cast<int>(rows.ids.size());
  }
  if (auto status = begin_round(sequences, settings, shape); !status) return status;
  read_round();
  return {};
}

/// Every running sequence can reach the full context; snapshots share these pages. A device gives
/// what it has, when that is enough for one sequence.
Result<void> LoadedModel::make_store() {
  const auto per_sequence = static_cast<int64_t>(pages_for(max_context_));
  int64_t pages = per_sequence * options_.max_sequences;
  Memory& memory = ops_->memory();
  if (!memory.on_host()) {
    const auto slots = static_cast<int64_t>(layout_->slot_bytes()) * options_.max_sequences;
    const auto usable =
        static_cast<int64_t>(static_cast<double>(memory.free_bytes()) * options_.memory_fraction) -
        slots;
    const int64_t fitting = usable / static_cast<int64_t>(layout_->page_bytes());
    if (fitting < per_sequence)
      return fail({.code = Errc::kOutOfMemory,
                   .what = "the device memory holds no full context",
                   .where = "max_context",
                   .expected = std::to_string(per_sequence) + " pages of " +
                               std::to_string(layout_->page_bytes()) + " bytes beside " +
                               std::to_string(options_.max_sequences) + " sequence states",
                   .found = std::to_string(std::max<int64_t>(fitting, 0)) + " pages",
                   .hint = "lower --ctx, or raise --memory-fraction"});
    pages = std::min(pages, fitting);
  }
  if (pages > std::numeric_limits<int32_t>::max())
    return fail({.code = Errc::kInvalidArgument,
                 .what = "too many cache pages",
                 .where = "max_sequences",
                 .expected = "at most " + std::to_string(std::numeric_limits<int32_t>::max()) +
                             " pages of " + std::to_string(ops::kPageTokens) + " tokens",
                 .found = std::to_string(options_.max_sequences) + " sequences of " +
                          std::to_string(per_sequence) + " pages"});
  auto pool = PagePool::make(layout_->page_bytes(), static_cast<int32_t>(pages),
                             std::shared_ptr<Memory>(ops_, &memory));
  if (!pool) return fail(std::move(pool.error()));
  store_ = std::make_unique<SequenceStore>(*layout_, *pool, options_.max_sequences);
  return {};
}

void LoadedModel::replace_ops(ops::Ops& ops) {
  model_ = std::make_unique<TextModel>(parts_.config, parts_.weights, *layout_, ops,
                                       store_->pool().base(), max_context_);
}

StateIdentity LoadedModel::state_identity() const {
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15U;
  uint64_t value = parts_.weights.fingerprint;
  for (const auto part :
       {static_cast<uint64_t>(budget_blocks_), static_cast<uint64_t>(options_.ops),
        static_cast<uint64_t>(ops_->traits().activation)})
    value = (value ^ part) * kMix;
  return {.layout = layout_.get(), .weights = value, .vocab_size = parts_.config.vocab_size};
}

ModelInfo LoadedModel::info() const {
  ModelInfo info = describe_model(options_, parts_, *layout_, *ops_, max_context_, budget_blocks_);
  info.max_draft = has_draft() ? options_.max_draft : 0;
  info.draft_note = draft_note_;
  return info;
}

}  // namespace tessera
