// SPDX-License-Identifier: Apache-2.0
// Texts decoded plainly, row by row, with all that a drafting sequence must reproduce of them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/sampler.h"
#include "tests/engine/model_harness.h"

namespace tessera::test {

/// One text: its entry k follows `prompt` and the first k tokens of `text`.
struct Story {
  ScopedSequence cold;  // all of it absorbed, in the model that decoded it
  std::vector<int32_t> prompt{};
  uint64_t seed = 0;
  std::vector<int32_t> text{};
  std::vector<std::vector<float>> logits{};        // that text[k] was drawn from
  std::vector<std::vector<float>> draft_logits{};  // of the draft layer, with text[k] as its token
};

/// A row whose draw follows the prompt of a text and `known` more tokens.
struct DrawnRow {
  const Story* story = nullptr;
  size_t known = 0;
};

/// One token for each row, from entry `first` of the last launch on; `drafted`: of the draft layer.
inline std::vector<int32_t> draw_rows(LoadedModel& model, int first, std::span<const DrawnRow> rows,
                                      bool drafted = false) {
  const int vocab = model.config().vocab_size;
  std::vector<ops::LogitEdit> edits;
  std::vector<ops::SampleRow> wanted;
  for (const DrawnRow& row : rows) {
    SamplingParams params;
    params.temperature = 1.0F;
    params.seed = row.story->seed;
    const std::vector<int32_t>& prompt = row.story->prompt;
    wanted.push_back(Sampler::make(params, {.vocab_size = vocab, .valid_vocab = vocab}, prompt)
                         ->row(static_cast<int64_t>(prompt.size() + row.known), edits));
  }
  std::vector<ops::SampledToken> results(rows.size());
  const ops::SampleArgs args{.rows = wanted, .edits = edits, .results = results};
  if (drafted)
    model.sample_drafts(args);
  else
    model.sample(first, args);
  std::vector<int32_t> tokens;
  for (const ops::SampledToken& result : results) tokens.push_back(result.token);
  return tokens;
}

/// The prompt's share of the draft layer: all rows but the last, which waits for its token.
inline Result<void> read_draft_prompt(LoadedModel& model, SequenceId id,
                                      std::span<const int32_t> prompt) {
  if (prompt.size() < 2) return {};
  const DraftRows rows{.sequence = id, .next_ids = prompt.subspan(1)};
  return model.draft({&rows, 1}, {.role = ops::Role::kPrefill, .cache_only = true});
}

/// Decodes `tokens` tokens, one row a launch, and runs the draft layer beside it, each row with the
/// token that really follows.
inline Story decode_story(LoadedModel& model, std::vector<int32_t> prompt, uint64_t seed,
                          size_t tokens) {
  Story story{.cold = open_sequence(model), .prompt = std::move(prompt), .seed = seed};
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  const SequenceId id = story.cold.id();
  EXPECT_TRUE(model.prefill(id, story.prompt));
  EXPECT_TRUE(read_draft_prompt(model, id, story.prompt));
  auto position = static_cast<int64_t>(story.prompt.size()) - 1;
  auto source = static_cast<int>(story.prompt.size()) - 1;
  while (story.text.size() < tokens) {
    model.logits(0, 1, story.logits.emplace_back(vocab).data());
    const DrawnRow drawn{&story, story.text.size()};
    story.text.push_back(draw_rows(model, 0, {&drawn, 1}).front());
    const std::span<const int32_t> next(&story.text.back(), 1);
    const DraftRows row{
        .sequence = id, .position = position, .next_ids = next, .first_source = source};
    EXPECT_TRUE(model.draft({&row, 1}, {}));
    model.draft_logits(0, 1, story.draft_logits.emplace_back(vocab).data());
    const SequenceRows work{.sequence = id, .ids = next};
    const int32_t logit_row = 0;
    EXPECT_TRUE(model.run({&work, 1}, ops::Role::kDecode, {&logit_row, 1}));
    ++position;
    source = 0;
  }
  return story;
}

}  // namespace tessera::test
