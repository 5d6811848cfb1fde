// SPDX-License-Identifier: Apache-2.0
// Runs a small model launch by launch and records logits and selections, for tests of invariance.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/philox.h"
#include "runtime/loaded_model.h"
#include "runtime/scoped_sequence.h"

namespace tessera::test {

inline std::unique_ptr<LoadedModel> load_model(const EngineOptions& options) {
  auto model = LoadedModel::load(options);
  EXPECT_TRUE(model) << (model ? "" : model.error().message());
  return model ? std::move(*model) : nullptr;
}

inline std::unique_ptr<LoadedModel> load_model(const std::string& dir, OpsKind ops,
                                               CacheType cache = CacheType::kF32,
                                               int indexer_budget = 0) {
  EngineOptions options;
  options.model_dir = dir;
  options.ops = ops;
  options.cache_type = cache;
  options.indexer_budget = indexer_budget;
  return load_model(options);
}

/// Repeatable ids with repeated n-grams and end-of-text ids inside, so that every state part
/// matters.
inline std::vector<int32_t> sample_ids(const LoadedModel& model, size_t count, uint64_t seed) {
  constexpr size_t kRepeat = 37, kEosEvery = 53;
  std::vector<int32_t> ids(count);
  for (size_t at = 0; at < count; ++at) {
    const double uniform = philox_uniform(seed, at, DrawPurpose::kSample);
    ids[at] = static_cast<int32_t>(uniform * (model.config().vocab_size - 1));
    if (at >= kRepeat && at % 5 < 3) ids[at] = ids[at - kRepeat];
    if (at % kEosEvery == kEosEvery - 1) ids[at] = model.config().ple.hash_eos;
  }
  return ids;
}

/// Everything a launch shows: selected blocks and experts per layer, row by row.
class RecordingTap final : public Tap {
 public:
  void values(std::string_view, int, const float*, int, int) override {}
  void ngram(int, const int64_t*, int, int) override {}
  void experts(int, const int32_t*, int, int) override {}
  void selection(int layer, const int32_t* blocks, const int32_t* counts, int rows,
                 int budget_blocks) override {
    for (int row = 0; row < rows; ++row) {
      const int32_t* list = blocks + static_cast<ptrdiff_t>(row) * budget_blocks;
      selected[layer].emplace_back(list, list + counts[row]);
    }
  }
  std::map<int, std::vector<std::vector<int32_t>>> selected;
};

/// Logits of every row of one launch.
inline std::vector<float> run_rows(LoadedModel& model, std::span<const SequenceRows> work,
                                   ops::Role role, Tap* tap = nullptr) {
  std::vector<int32_t> rows;
  for (const SequenceRows& sequence : work)
    for (size_t row = 0; row < sequence.ids.size(); ++row)
      rows.push_back(static_cast<int32_t>(rows.size()));
  auto status = model.run(work, role, rows, tap);
  EXPECT_TRUE(status) << (status ? "" : status.error().message());
  std::vector<float> logits(rows.size() * static_cast<size_t>(model.config().vocab_size));
  model.logits(0, static_cast<int>(rows.size()), logits.data());
  return logits;
}

/// Logits of all rows when `ids` are absorbed in launches of `chunk` rows.
inline std::vector<float> run_chunks(LoadedModel& model, SequenceId sequence,
                                     std::span<const int32_t> ids, size_t chunk, ops::Role role,
                                     Tap* tap = nullptr) {
  std::vector<float> logits;
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    const SequenceRows work{.sequence = sequence,
                            .ids = ids.subspan(begin, std::min(chunk, ids.size() - begin))};
    const std::vector<float> part = run_rows(model, {&work, 1}, role, tap);
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

inline ScopedSequence open_sequence(LoadedModel& model) {
  return ScopedSequence(model.store(), model.store().create().value());
}

}  // namespace tessera::test
