// SPDX-License-Identifier: Apache-2.0
// A device repeats a recorded step for an equal key: whenever a key comes again, the ops must be
// called with the places and sizes that they were called with before.
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <vector>

#include "eval/forwarding_ops.h"
#include "tests/engine/model_harness.h"

namespace tessera::test {
namespace {

constexpr int kMaxDraft = 5;
constexpr size_t kPrompt = 50;

/// Keeps what the ops of each step were given, but for what `begin` hands over anew.
class TracingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  void repeat(const ops::StepKey& key, const std::function<void()>& ops) override {
    trace_.clear();
    ops();
    for (const auto& [known, trace] : steps_) {
      if (known != key) continue;
      EXPECT_EQ(trace_, trace) << "kind " << static_cast<int>(key.kind) << ", rows "
                               << key.num_rows;
      ++repeated_[key.kind];
      return;
    }
    steps_.emplace_back(key, trace_);
  }
  void forget_repeats() override { steps_.clear(); }
  int repeated(ops::StepKind kind) const {
    const auto found = repeated_.find(kind);
    return found == repeated_.end() ? 0 : found->second;
  }

  void linear(const ops::LinearArgs& args) override {
    note(args.x, args.rows);
    for (const ops::LinearPart& part : args.parts)
      note(part.weight.data, part.weight.out_features, part.y);
    inner_.linear(args);
  }
  void draft_input(const ops::DraftInputArgs& args) override {
    note(args.wide, args.embedded, args.normed, args.inject, args.rows);
    inner_.draft_input(args);
  }
  void qsa_select(const ops::QsaSelectArgs& args) override {
    note(args.index_q, args.blocks, args.counts, args.budget_blocks);
    inner_.qsa_select(args);
  }
  void qsa_extend(const ops::QsaExtendArgs& args) override {
    note(args.from_blocks, args.from_counts, args.from_stride, args.blocks, args.counts,
         args.stride);
    inner_.qsa_extend(args);
  }
  void qsa_attend(const ops::QsaAttendArgs& args) override {
    note(args.q, args.blocks, args.counts, args.budget_blocks, args.out);
    inner_.qsa_attend(args);
  }

 private:
  template <class... Values>
  void note(Values... values) {
    const auto add = [this](auto value) {
      if constexpr (std::is_pointer_v<decltype(value)>)
        trace_.push_back(std::bit_cast<uintptr_t>(value));
      else
        trace_.push_back(static_cast<uintptr_t>(value));
    };
    (add(values), ...);
  }

  std::vector<std::pair<ops::StepKey, std::vector<uintptr_t>>> steps_{};
  std::vector<uintptr_t> trace_{};
  std::map<ops::StepKind, int> repeated_{};
};

struct Sequence {
  ScopedSequence sequence;
  std::vector<int32_t> ids;
  size_t position = kPrompt;
};

Sequence open_text(LoadedModel& model, uint64_t seed) {
  Sequence text{.sequence = open_sequence(model), .ids = sample_ids(model, 4 * kPrompt, seed)};
  const std::span<const int32_t> ids(text.ids);
  EXPECT_TRUE(model.prefill(text.sequence.id(), ids.first(kPrompt)));
  const DraftRows rows{.sequence = text.sequence.id(), .next_ids = ids.subspan(1, kPrompt)};
  EXPECT_TRUE(model.draft({&rows, 1}, {.role = ops::Role::kPrefill, .cache_only = true}));
  return text;
}

/// Verifies `drafts` of each text, accepts them all, and drafts as many, the last of the texts one
/// less than the one before it.
void run_round(LoadedModel& model, std::span<Sequence> texts, int drafts, bool share) {
  const auto rows_each = static_cast<size_t>(drafts) + 1;
  std::vector<SequenceRows> work;
  std::vector<int32_t> logit_rows;
  std::vector<DraftRows> caches, rows;
  for (Sequence& text : texts) {
    const std::span<const int32_t> ids(text.ids);
    const auto first = static_cast<int>(logit_rows.size());
    work.push_back({.sequence = text.sequence.id(), .ids = ids.subspan(text.position, rows_each)});
    for (size_t row = 0; row < rows_each; ++row)
      logit_rows.push_back(static_cast<int32_t>(logit_rows.size()));
    const auto position = static_cast<int64_t>(text.position);
    caches.push_back({.sequence = text.sequence.id(),
                      .position = position,
                      .next_ids = ids.subspan(text.position + 1, rows_each - 1),
                      .first_source = first});
    text.position += rows_each;
    rows.push_back({.sequence = text.sequence.id(),
                    .position = position + drafts,
                    .next_ids = ids.subspan(text.position, 1),
                    .first_source = first + drafts});
  }
  ASSERT_TRUE(model.verify(work, logit_rows));
  for (size_t at = 0; at < texts.size(); ++at)
    model.accept(work[at], static_cast<int>(at * rows_each), static_cast<int>(rows_each));
  ASSERT_TRUE(model.draft(caches, {.cache_only = true}));
  DraftRun how{.selection = share ? DraftSelection::kKept : DraftSelection::kFresh};
  for (int drafted = 1; drafted <= drafts && !rows.empty(); ++drafted) {
    ASSERT_TRUE(model.draft(rows, how));
    if (rows.size() > 1) rows.pop_back();
    for (size_t at = 0; at < rows.size(); ++at) {
      rows[at].position += 1;
      rows[at].next_ids =
          std::span(texts[at].ids).subspan(texts[at].position + static_cast<size_t>(drafted), 1);
      rows[at].first_source = static_cast<int>(at);
    }
    how.source = DraftSource::kDraft;
    if (share) how.selection = DraftSelection::kContinued;
  }
}

TEST(DraftSteps, EqualKeysMeanEqualArguments) {
  const auto model = load_model("models/nano", OpsKind::kFast, CacheType::kF32, 32);
  ASSERT_NE(model, nullptr);
  TracingOps ops(model->ops());
  model->replace_ops(ops);
  std::vector<Sequence> texts;
  // A larger batch moves buffers between launches of the sizes that were there before.
  for (const size_t count : {1, 2, 1, 4, 2, 1}) {
    while (texts.size() < count) texts.push_back(open_text(*model, texts.size()));
    for (const bool share : {false, true, false, true})
      for (const int drafts : {kMaxDraft, 1, 3, kMaxDraft})
        ASSERT_NO_FATAL_FAILURE(run_round(*model, std::span(texts).first(count), drafts, share));
    texts.clear();
  }
  for (const auto kind : {ops::StepKind::kVerify, ops::StepKind::kDraft, ops::StepKind::kDraftCache,
                          ops::StepKind::kDraftKept, ops::StepKind::kDraftChain})
    EXPECT_GT(ops.repeated(kind), 0) << static_cast<int>(kind);
}

}  // namespace
}  // namespace tessera::test
