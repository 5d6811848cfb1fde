// SPDX-License-Identifier: Apache-2.0
// Checks the options, loads every part in order and runs launches.
#include "runtime/loaded_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/parallel.h"
#include "cpu/cpu_ops.h"
#include "io/checkpoint.h"
#include "runtime/model_info.h"
#include "runtime/scheduler.h"

namespace tessera {
namespace {

constexpr int kMaxThreads = 1024;

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
  if (options.device != "cpu")
    return fail({.code = Errc::kUnsupported,
                 .what = "unknown device",
                 .where = "device",
                 .expected = "cpu",
                 .found = options.device,
                 .hint = "this build has no other backend"});
  if (options.threads < 0 || options.threads > kMaxThreads)
    return invalid("threads", "0 to " + std::to_string(kMaxThreads),
                   std::to_string(options.threads), "");
  if (options.prefill_chunk < ops::kPageTokens || options.prefill_chunk % ops::kPageTokens != 0)
    return invalid("prefill_chunk", "a positive multiple of " + std::to_string(ops::kPageTokens),
                   std::to_string(options.prefill_chunk), "");
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

}  // namespace

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const EngineOptions& options) {
  Result<ModelConfig> config = load_model_config(options.model_dir);
  if (!config) return fail(std::move(config.error()));
  Result<GenerationDefaults> defaults = load_generation_config(options.model_dir, *config);
  if (!defaults) return fail(std::move(defaults.error()));
  if (auto status = check_options(options, *config); !status) return fail(status.error());
  auto checkpoint = open_checkpoint(options.model_dir);
  if (!checkpoint) return fail(std::move(checkpoint.error()));
  Result<ModelWeights> weights = bind_weights(*config, *checkpoint, options.on_load_progress);
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
  model->parts_ = std::move(parts);
  const ModelConfig& config = model->parts_.config;
  set_num_threads(options.threads);
  model->ops_ = options.ops == OpsKind::kFast ? cpu::make_fast_ops() : cpu::make_reference_ops();
  model->max_context_ = options.max_context > 0 ? options.max_context : config.max_positions;
  const int budget = options.indexer_budget > 0 ? options.indexer_budget : config.indexer_budget;
  // More blocks than the context has would only reserve memory.
  model->budget_blocks_ = std::min(budget, model->max_context_) / config.qsa.block;

  Result<StateLayout> layout =
      StateLayout::make(config, {.cache_type = options.cache_type, .max_draft = options.max_draft});
  if (!layout) return fail(std::move(layout.error()));
  model->layout_ = std::make_unique<StateLayout>(std::move(*layout));

  // Every running sequence can reach the full context; snapshots share these pages.
  const auto pages_per_sequence = static_cast<int64_t>(pages_for(model->max_context_));
  if (pages_per_sequence * options.max_sequences > std::numeric_limits<int32_t>::max())
    return fail({.code = Errc::kInvalidArgument,
                 .what = "too many cache pages",
                 .where = "max_sequences",
                 .expected = "at most " + std::to_string(std::numeric_limits<int32_t>::max()) +
                             " pages of " + std::to_string(ops::kPageTokens) + " tokens",
                 .found = std::to_string(options.max_sequences) + " sequences of " +
                          std::to_string(pages_per_sequence) + " pages"});
  auto pool = PagePool::make(model->layout_->page_bytes(),
                             static_cast<int32_t>(pages_per_sequence * options.max_sequences));
  if (!pool) return fail(std::move(pool.error()));
  model->store_ = std::make_unique<SequenceStore>(*model->layout_, *pool, options.max_sequences);
  model->model_ = std::make_unique<TextModel>(model->parts_.config, model->parts_.weights,
                                              *model->layout_, *model->ops_, (*pool)->base());
  return model;
}

void LoadedModel::replace_ops(ops::Ops& ops) {
  model_ = std::make_unique<TextModel>(parts_.config, parts_.weights, *layout_, ops,
                                       store_->pool().base());
}

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

Result<void> LoadedModel::run(std::span<const SequenceRows> sequences, ops::Role role,
                              std::span<const int32_t> logit_rows, Tap* tap) {
  for (const SequenceRows& rows : sequences) {
    if (auto status = check_ids(rows.ids); !status) return status;
    const int64_t length = store_->length(rows.sequence);
    const auto target = length + static_cast<int64_t>(rows.ids.size());
    if (auto status = store_->reserve(rows.sequence, target); !status) return status;
    if (auto status = store_->prepare_write(rows.sequence, length); !status) return status;
  }
  std::vector<ops::RowSpan> spans;
  std::vector<int32_t> ids;
  std::vector<int32_t> positions;
  for (const SequenceRows& rows : sequences) {
    spans.push_back(store_->span(rows.sequence, static_cast<int>(ids.size()),
                                 static_cast<int>(rows.ids.size())));
    ids.insert(ids.end(), rows.ids.begin(), rows.ids.end());
    for (size_t row = 0; row < rows.ids.size(); ++row) {
      // Text: all three axes advance together.
      const auto position = static_cast<int32_t>(spans.back().position + static_cast<int64_t>(row));
      positions.insert(positions.end(), {position, position, position});
    }
  }
  model_->forward(
      {.batch = {.spans = spans, .num_rows = static_cast<int>(ids.size()), .role = role},
       .ids = ids,
       .positions = positions,
       .logit_rows = logit_rows,
       .budget_blocks = budget_blocks_,
       .tap = tap});
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

StateIdentity LoadedModel::state_identity() const {
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15U;
  uint64_t value = parts_.weights.fingerprint;
  for (const auto part :
       {static_cast<uint64_t>(budget_blocks_), static_cast<uint64_t>(options_.ops)})
    value = (value ^ part) * kMix;
  return {.layout = layout_.get(), .weights = value, .vocab_size = parts_.config.vocab_size};
}

ModelInfo LoadedModel::info() const {
  return describe_model(options_, parts_, *layout_, *ops_, max_context_, budget_blocks_);
}

}  // namespace tessera
