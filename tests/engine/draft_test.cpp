// SPDX-License-Identifier: Apache-2.0
// Drafts change how fast a text comes, never the text: greedy and seeded, alone and in a batch,
// through stops, saved states and small pools.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/engine/engine_harness.h"
#include "tests/engine/setups.h"

namespace tessera::test {
namespace {

constexpr int kMaxDraft = 5;
constexpr int kTokens = 60;

struct Setting {
  const char* name;
  SamplingParams sampling;
};

std::vector<Setting> settings() {
  SamplingParams greedy;
  greedy.temperature = 0.0F;
  SamplingParams seeded;
  seeded.temperature = 1.0F;
  seeded.seed = 7;
  SamplingParams filtered = seeded;
  filtered.top_p = 0.8F;
  filtered.top_k = 40;
  filtered.min_p = 0.01F;
  SamplingParams penalised = greedy;
  penalised.repetition_penalty = 1.3F;
  penalised.presence_penalty = 0.4F;
  penalised.frequency_penalty = 0.3F;
  SamplingParams all = filtered;
  all.temperature = 0.7F;
  all.frequency_penalty = 0.5F;
  all.logit_bias = {{17, 2.0F}, {250, -5.0F}};
  return {{"greedy", greedy},
          {"seeded", seeded},
          {"filtered", filtered},
          {"penalised", penalised},
          {"all", all}};
}

class DraftTest : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_skipped(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
    engine_ = load_engine(options_of(GetParam()));
    ASSERT_NE(engine_, nullptr);
    ASSERT_EQ(engine_->info().max_draft, kMaxDraft);
  }

  Request make(int prompt_tokens, int salt, const SamplingParams& sampling, int draft) const {
    Request request = request_of(prompt(prompt_tokens, salt), 0, 0, kTokens);
    request.sampling = sampling;
    request.draft = draft;
    return request;
  }
  std::vector<int32_t> prompt(int tokens, int salt) const {
    std::vector<int32_t> ids = prompt_of(tokens, salt);
    for (int32_t& id : ids) id %= engine_->info().vocab_size - 2;
    return ids;
  }

  std::unique_ptr<Engine> engine_;
};

TEST_P(DraftTest, EveryDepthGivesTheTextOfPlainDecoding) {
  for (const Setting& setting : settings()) {
    const Output plain = run(*engine_, make(70, 1, setting.sampling, 0));
    EXPECT_EQ(plain.last.usage.drafts.rounds, 0);
    for (int draft = kDraftAuto; draft <= kMaxDraft; ++draft) {
      const Output output = run(*engine_, make(70, 1, setting.sampling, draft));
      EXPECT_EQ(output.tokens, plain.tokens) << setting.name << " draft " << draft;
      EXPECT_EQ(output.last.reason, plain.last.reason);
      if (draft <= 0) continue;
      const DraftUsage& drafts = output.last.usage.drafts;
      ASSERT_EQ(drafts.proposed.size(), static_cast<size_t>(draft)) << setting.name;
      EXPECT_GT(drafts.rounds, 0);
      // Every token but the first came from a round.
      const int taken = static_cast<int>(drafts.mean_length() * drafts.rounds + 0.5);
      EXPECT_LE(taken, kTokens - 1);
    }
  }
}

TEST_P(DraftTest, UsageSumsTheRoundsOfARequest) {
  SamplingParams greedy;
  greedy.temperature = 0.0F;
  for (const int draft : {0, 3}) {
    const Usage usage = run(*engine_, make(50, 3, greedy, draft)).last.usage;
    // Alone, it got every token but the first from these rounds.
    EXPECT_EQ(usage.rounds.tokens, kTokens - 1);
    EXPECT_LE(usage.rounds.rounds, kTokens - 1);
    EXPECT_GE(usage.rounds.rounds, usage.drafts.rounds);
    EXPECT_GT(usage.rounds.verify_seconds, 0.0);
    EXPECT_EQ(usage.rounds.draft_seconds > 0.0, draft > 0);
    EXPECT_LE(usage.rounds.verify_seconds + usage.rounds.draft_seconds, usage.decode_seconds);
  }
}

TEST_P(DraftTest, RoundsCountTheTokensOfEverySequence) {
  SamplingParams greedy;
  greedy.temperature = 0.0F;
  Request longer = make(50, 4, greedy, 0);
  longer.max_tokens = 0;  // until it is cancelled
  Generation other = std::move(*engine_->submit(longer));
  ASSERT_EQ(other.next().kind, Event::Kind::kPrefill);
  const Usage usage = run(*engine_, make(50, 5, greedy, 0)).last.usage;
  EXPECT_EQ(usage.rounds.rounds, kTokens - 1);
  EXPECT_EQ(usage.rounds.tokens, 2 * (kTokens - 1));
}

TEST_P(DraftTest, ABatchMayMixDepths) {
  constexpr int kRequests = 8;
  const auto all = settings();
  const auto request = [&](int index, int draft) {
    return make(20 + 37 * index, index, all[static_cast<size_t>(index) % all.size()].sampling,
                draft);
  };
  std::vector<Generation> together;
  for (int index = 0; index < kRequests; ++index)
    together.push_back(std::move(*engine_->submit(request(index, index % (kMaxDraft + 1)))));
  for (int index = 0; index < kRequests; ++index) {
    const Output output = drain(together[static_cast<size_t>(index)]);
    EXPECT_EQ(output.tokens, run(*engine_, request(index, 0)).tokens) << index;
  }
}

TEST_P(DraftTest, AStopInsideAnAcceptedRunEndsTheTextThere) {
  SamplingParams greedy;
  greedy.temperature = 0.0F;
  const Output free = run(*engine_, make(50, 2, greedy, 0));
  for (size_t at = 0; at < 12; ++at) {
    for (const int draft : {0, 2, kMaxDraft}) {
      Request request = make(50, 2, greedy, draft);
      request.stop_ids = {free.tokens[at]};
      request.keep_state = true;
      const Output output = run(*engine_, request);
      const auto hit = std::find(free.tokens.begin(), free.tokens.end(), free.tokens[at]);
      EXPECT_EQ(output.tokens, std::vector<int32_t>(free.tokens.begin(), hit + 1));
      EXPECT_EQ(output.last.reason, FinishReason::kStop);
      // The state has absorbed all but the last token, as without drafts.
      ASSERT_NE(output.last.state, nullptr);
      EXPECT_EQ(Engine::state_tokens(output.last.state).size(), 50 + output.tokens.size() - 1);
    }
    Request limited = make(50, 2, greedy, kMaxDraft);
    limited.max_tokens = static_cast<int>(at) + 1;
    const Output output = run(*engine_, limited);
    EXPECT_EQ(output.tokens.size(), at + 1);
    EXPECT_EQ(output.last.reason, FinishReason::kLength);
  }
}

/// A state made with drafts continues as one made without, whatever the continuation drafts.
TEST_P(DraftTest, AStateMayOutliveItsEngine) {
  Request request = make(20, 5, settings().front().sampling, 2);
  request.keep_state = true;
  const Output output = run(*engine_, request);
  ASSERT_NE(output.last.state, nullptr);
  engine_.reset();
  EXPECT_GE(Engine::state_tokens(output.last.state).size(), request.prompt.size());
}

TEST_P(DraftTest, SavedStatesContinueTheSameText) {
  SamplingParams sampling;
  sampling.temperature = 0.8F;
  sampling.seed = 3;
  std::vector<std::vector<int32_t>> texts;
  for (const int first : {0, 1, 3, kMaxDraft})
    for (const int second : {0, 2, kMaxDraft}) {
      Request request = make(67, 3, sampling, first);
      request.keep_state = true;
      const Output opening = run(*engine_, request);
      const std::string path = testing::TempDir() + "tessera_draft.state";
      ASSERT_TRUE(engine_->save_state(opening.last.state, path));
      Request more = request;
      more.prompt.insert(more.prompt.end(), opening.tokens.begin(), opening.tokens.end());
      more.prompt.push_back(99);
      more.draft = second;
      more.resume_from = *engine_->load_state(path);
      const Output continued = run(*engine_, more);
      EXPECT_GT(continued.last.usage.cached_tokens, 0);
      // A state made without the draft layer cannot be drafted on.
      EXPECT_EQ(continued.last.usage.drafts.rounds > 0, first > 0 && second > 0);
      texts.push_back(continued.tokens);
      EXPECT_EQ(texts.back(), texts.front()) << first << " " << second;
      std::filesystem::remove(path);
    }
}

TEST_P(DraftTest, ReachesTheEndOfTheContext) {
  constexpr int kContext = 100;
  const auto engine = load_engine(options_of(GetParam(), kContext));
  ASSERT_NE(engine, nullptr);
  std::vector<int32_t> plain;
  for (int draft = 0; draft <= kMaxDraft; ++draft) {
    Request request = request_of(prompt(70, 4), 0.0F, 0, 0);
    request.draft = draft;
    const Output output = run(*engine, request);
    EXPECT_EQ(output.tokens.size(), 30U);
    EXPECT_EQ(output.last.reason, FinishReason::kLength);
    if (draft == 0) plain = output.tokens;
    EXPECT_EQ(output.tokens, plain) << draft;
  }
}

TEST_P(DraftTest, RefusesWhatItCannotDo) {
  for (const int draft : {-2, kMaxDraft + 1}) {
    Request request = request_of({1, 2, 3}, 0.0F, 0, 4);
    request.draft = draft;
    const auto refused = engine_->submit(request);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
  }
  EngineOptions options = options_of(GetParam());
  options.max_draft = 0;
  const auto without = Engine::load(options);
  ASSERT_TRUE(without);
  EXPECT_EQ((*without)->info().max_draft, 0);
  EXPECT_FALSE((*without)->info().draft_note.empty());
  Request request = request_of({1, 2, 3}, 0.0F, 0, 4);
  EXPECT_EQ(run(**without, request).tokens.size(), 4U) << "auto falls back";
}

INSTANTIATE_TEST_SUITE_P(Setups, DraftTest, testing::ValuesIn(draft_setups()), setup_name);

}  // namespace
}  // namespace tessera::test
