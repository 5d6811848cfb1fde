// SPDX-License-Identifier: Apache-2.0
// Drafts from a shortlist: the same text, nearly the same acceptance; lists that do not fit are
// refused at load.
#include <gtest/gtest.h>
#include <tessera/shortlist.h>
#include <tessera/tokenizer.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "tests/engine/engine_harness.h"
#include "tests/engine/model_harness.h"

namespace tessera::test {
namespace {

constexpr int kDraft = 3;

class ShortlistTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  std::vector<int32_t> question(int first, int second) const {
    return tokenizer_.encode("<|im_start|>user\nWhat is " + std::to_string(first) + " + " +
                             std::to_string(second) +
                             "?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  }
  Shortlist list_of(std::vector<int32_t> ids) const {
    return {.vocab_size = static_cast<uint32_t>(tokenizer_.vocab_size()),
            .vocabulary = tokenizer_.fingerprint(),
            .ids = std::move(ids)};
  }
  EngineOptions options() const {
    EngineOptions options;
    options.model_dir = "models/tiny";
    options.max_context = 256;
    options.valid_vocab = tokenizer_.vocab_size();
    options.vocabulary = tokenizer_.fingerprint();
    return options;
  }
  std::unique_ptr<Engine> engine_with(const Shortlist& list) const {
    EXPECT_TRUE(save_shortlist(list, path_));
    EngineOptions with = options();
    with.draft_shortlist = path_;
    auto engine = Engine::load(with);
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().message());
    return engine ? std::move(*engine) : nullptr;
  }

  const Tokenizer tokenizer_ = Tokenizer::load("models/tiny").value();
  const std::string path_ = testing::TempDir() + "tessera_engine.shortlist";
};

/// Ids of some answers and their questions: the corpus of other sums.
std::vector<int32_t> frequent_ids(Engine& engine, const std::vector<std::vector<int32_t>>& prompts,
                                  int vocab_size) {
  std::vector<uint64_t> counts(static_cast<size_t>(vocab_size));
  for (const std::vector<int32_t>& prompt : prompts) {
    Request request = request_of(prompt, 0.0F, 0, 24);
    request.ignore_eos = false;
    for (const auto& ids : {prompt, run(engine, request).tokens})
      for (const int32_t id : ids) ++counts[static_cast<size_t>(id)];
  }
  return most_frequent_ids(counts, counts.size());
}

int accepted_of(const Output& output) {
  const std::vector<int>& places = output.last.usage.drafts.accepted;
  return std::accumulate(places.begin(), places.end(), 0);
}

TEST_F(ShortlistTest, TextIsUnchangedAndAcceptanceIsNearThatOfTheWholeHead) {
  const auto whole = Engine::load(options());
  ASSERT_TRUE(whole);
  std::vector<std::vector<int32_t>> corpus;
  for (int at = 0; at < 20; ++at) corpus.push_back(question(11 + 3 * at, 90 - 4 * at));
  const std::vector<int32_t> ids = frequent_ids(**whole, corpus, tokenizer_.vocab_size());
  ASSERT_LT(ids.size(), 300U);
  const auto cut = engine_with(list_of(ids));
  ASSERT_NE(cut, nullptr);
  int accepted_whole = 0, accepted_cut = 0;
  for (int at = 0; at < 20; ++at) {
    Request request = request_of(question(12 + 4 * at, 13 + 2 * at), 0.0F, 0, 24);
    request.ignore_eos = false;
    request.draft = 0;
    const Output plain = run(**whole, request);
    request.draft = kDraft;
    const Output with_whole = run(**whole, request);
    const Output with_cut = run(*cut, request);
    EXPECT_EQ(with_whole.tokens, plain.tokens);
    EXPECT_EQ(with_cut.tokens, plain.tokens);
    accepted_whole += accepted_of(with_whole);
    accepted_cut += accepted_of(with_cut);
  }
  EXPECT_GT(accepted_whole, 50);
  EXPECT_GE(accepted_cut, 95 * accepted_whole / 100);
}

/// Of every setting, also where the list misses what is drawn, penalised or biased.
TEST_F(ShortlistTest, AnyListGivesTheSameText) {
  const auto whole = Engine::load(options());
  ASSERT_TRUE(whole);
  std::vector<int32_t> every_third;
  for (int32_t id = 1; id < tokenizer_.vocab_size(); id += 3) every_third.push_back(id);
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{17}, every_third}) {
    const auto cut = engine_with(list_of(ids));
    ASSERT_NE(cut, nullptr);
    for (const float temperature : {0.0F, 0.8F}) {
      Request request = request_of(question(31, 45), temperature, 6, 60);
      request.sampling.frequency_penalty = 0.4F;
      request.sampling.top_k = 50;
      request.sampling.logit_bias = {{16, 1.0F}, {17, 1.0F}, {18, -1.0F}};
      request.draft = 0;
      const Output plain = run(**whole, request);
      request.draft = kDraft;
      const Output output = run(*cut, request);
      EXPECT_EQ(output.tokens, plain.tokens) << ids.size() << " ids at " << temperature;
      EXPECT_GT(output.last.usage.drafts.rounds, 0);
    }
  }
}

/// The logits of the cut head are those of the listed rows of the whole one.
TEST_F(ShortlistTest, TheCutHeadScoresTheListedIds) {
  EngineOptions with = options();
  ASSERT_TRUE(save_shortlist(list_of({3, 4, 500, 501, 8000}), path_));
  with.draft_shortlist = path_;
  const auto cut = LoadedModel::load(with);
  const auto whole = LoadedModel::load(options());
  ASSERT_TRUE(cut && whole);
  const std::vector<int32_t> prompt = question(5, 6);
  const auto logits_of = [&](LoadedModel& model, size_t count) {
    const ScopedSequence sequence = open_sequence(model);
    EXPECT_TRUE(model.prefill(sequence.id(), prompt));
    const int32_t next = 20;
    const DraftRows row{.sequence = sequence.id(), .position = 0, .next_ids = {&next, 1}};
    EXPECT_TRUE(model.draft({&row, 1}, {}));
    std::vector<float> logits(count);
    model.draft_logits(0, 1, logits.data());
    return logits;
  };
  // The end-of-text ids of the model are added to any list.
  const std::vector<int32_t>& ids = (*cut)->weights().draft->shortlist;
  for (const int32_t id : (*cut)->defaults().eos_token_ids)
    EXPECT_TRUE(std::ranges::binary_search(ids, id));
  const std::vector<float> some = logits_of(**cut, ids.size());
  const std::vector<float> all =
      logits_of(**whole, static_cast<size_t>((*whole)->config().vocab_size));
  for (size_t at = 0; at < ids.size(); ++at)
    EXPECT_FLOAT_EQ(some[at], all[static_cast<size_t>(ids[at])]) << ids[at];
}

TEST_F(ShortlistTest, RefusesWhatDoesNotFit) {
  const auto error_of = [&](const Shortlist& list, auto change) {
    EXPECT_TRUE(save_shortlist(list, path_));
    EngineOptions with = options();
    with.draft_shortlist = path_;
    change(with);
    const auto engine = Engine::load(with);
    EXPECT_FALSE(engine);
    return engine ? Errc::kInternal : engine.error().code;
  };
  const auto nothing = [](EngineOptions&) {};
  Shortlist list = list_of({1, 2, 3});
  list.vocab_size += 1;
  EXPECT_EQ(error_of(list, nothing), Errc::kMismatch);
  list = list_of({1, 2, 3});
  list.vocabulary ^= 1;
  EXPECT_EQ(error_of(list, nothing), Errc::kMismatch);
  EXPECT_EQ(error_of(list_of({}), nothing), Errc::kCorruptFile);
  EXPECT_EQ(error_of(list_of({2, 1}), nothing), Errc::kCorruptFile);
  EXPECT_EQ(error_of(list_of({1, 1}), nothing), Errc::kCorruptFile);
  EXPECT_EQ(error_of(list_of({1}), [](EngineOptions& with) { with.max_draft = 0; }),
            Errc::kUnsupported);
  EXPECT_EQ(error_of(list_of({1}), [](EngineOptions& with) { with.draft_shortlist += ".absent"; }),
            Errc::kNotFound);
  // Without a tokenizer the ids must still be those of the model.
  list = list_of({1});
  list.vocab_size = 1 << 20;
  EXPECT_EQ(error_of(list, [](EngineOptions& with) { with.valid_vocab = 0; }), Errc::kMismatch);
}

}  // namespace
}  // namespace tessera::test
