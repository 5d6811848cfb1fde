// SPDX-License-Identifier: Apache-2.0
// The public engine on the shipped models: determinism, stops, sampling, saved states.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/engine/engine_harness.h"

namespace tessera::test {
namespace {

TEST(Engine, TheSameRequestGivesTheSameTokensAloneAndInABatch) {
  const auto engine = load_engine();
  ASSERT_NE(engine, nullptr);
  constexpr int kRequests = 9, kTokens = 40;
  std::vector<Output> alone;
  const auto make = [&](int index) {
    return request_of(prompt_of(20 + 31 * index, index), index % 2 == 0 ? 0.0F : 1.0F,
                      static_cast<uint64_t>(index), kTokens);
  };
  for (int index = 0; index < kRequests; ++index) alone.push_back(run(*engine, make(index)));
  std::vector<Generation> together;
  for (int index = 0; index < kRequests; ++index)
    together.push_back(std::move(*engine->submit(make(index))));
  for (int index = 0; index < kRequests; ++index) {
    const auto at = static_cast<size_t>(index);
    const Output output = drain(together[at]);
    EXPECT_EQ(output.tokens, alone[at].tokens) << index;
    EXPECT_EQ(output.tokens.size(), static_cast<size_t>(kTokens));
    EXPECT_EQ(output.last.reason, FinishReason::kLength);
  }
}

TEST(Engine, SeedsDecideTheText) {
  const auto engine = load_engine();
  ASSERT_NE(engine, nullptr);
  const Request request = request_of(prompt_of(30), 1.0F, 5, 30);
  const Output first = run(*engine, request);
  EXPECT_EQ(run(*engine, request).tokens, first.tokens);
  Request other = request;
  other.sampling.seed = 6;
  EXPECT_NE(run(*engine, other).tokens, first.tokens);
}

TEST(Engine, StopsOnStopIdsAndEndOfText) {
  const auto engine = load_engine();
  ASSERT_NE(engine, nullptr);
  Request request = request_of(prompt_of(30), 0.0F, 0, 30);
  const Output free = run(*engine, request);
  ASSERT_GE(free.tokens.size(), 3U);
  request.stop_ids = {free.tokens[2]};
  const Output stopped = run(*engine, request);
  const auto first_hit = std::find(free.tokens.begin(), free.tokens.end(), free.tokens[2]);
  EXPECT_EQ(stopped.last.reason, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(free.tokens.begin(), first_hit + 1));

  // The model's own end of text: forced by a bias, obeyed unless the request says otherwise.
  const int32_t end = engine->info().defaults.eos_token_ids.at(0);
  Request ending = request_of(prompt_of(30), 0.0F, 0, 30);
  ending.sampling.logit_bias = {{end, 1e4F}};
  EXPECT_EQ(run(*engine, ending).tokens.size(), 30U);
  ending.ignore_eos = false;
  const Output ended = run(*engine, ending);
  EXPECT_EQ(ended.tokens, std::vector<int32_t>{end});
  EXPECT_EQ(ended.last.reason, FinishReason::kStop);
}

TEST(Engine, MoreRequestsThanSlotsAllFinish) {
  EngineOptions options;
  options.model_dir = "models/nano";
  options.max_sequences = 2;
  auto engine = Engine::load(options);
  ASSERT_TRUE(engine);
  std::vector<Generation> generations;
  for (int index = 0; index < 10; ++index) {
    Request request = request_of({1, 2, index + 3}, 0.0F, 0, 12);
    generations.push_back(std::move(*(*engine)->submit(request)));
  }
  for (Generation& generation : generations) EXPECT_EQ(drain(generation).tokens.size(), 12U);
  EXPECT_EQ((*engine)->stats().failed_requests, 0U);
  EXPECT_EQ((*engine)->stats().generated_tokens, 120U);
}

TEST(Engine, AResumedConversationEqualsAColdOneToTheLetter) {
  const auto engine = load_engine();
  ASSERT_NE(engine, nullptr);
  // Decode rows and prefill rows of the same text differ in rounding, so the same text must come
  // from the run that made the state, and a cold run agrees on what greedy decoding says with clear
  // margins.
  Request first = request_of(prompt_of(150), 0.0F, 0, 20);
  first.keep_state = true;
  const Output turn = run(*engine, first);
  ASSERT_NE(turn.last.state, nullptr);
  const auto& absorbed = Engine::state_tokens(turn.last.state);
  ASSERT_EQ(absorbed.size(), 150U + 19U);

  Request second = request_of(absorbed, 0.0F, 0, 10);
  second.prompt.push_back(turn.tokens.back());
  second.resume_from = turn.last.state;
  const Output resumed = run(*engine, second);
  EXPECT_EQ(resumed.last.usage.cached_tokens, 169);
  EXPECT_EQ(resumed.last.usage.prompt_tokens, 170);
  Request longer = first;
  longer.max_tokens = 30;
  const Output straight = run(*engine, longer);
  EXPECT_EQ(resumed.tokens,
            std::vector<int32_t>(straight.tokens.begin() + 20, straight.tokens.end()));

  const std::string path = testing::TempDir() + "tessera_engine_test.state";
  ASSERT_TRUE(engine->save_state(turn.last.state, path));
  auto loaded = engine->load_state(path);
  ASSERT_TRUE(loaded) << loaded.error().message();
  second.resume_from = *loaded;
  EXPECT_EQ(run(*engine, second).tokens, resumed.tokens);
  std::remove(path.c_str());

  second.prompt[3] += 1;
  auto mismatch = engine->submit(second);
  ASSERT_FALSE(mismatch);
  EXPECT_EQ(mismatch.error().code, Errc::kMismatch);
}

TEST(Engine, UnusedVocabularyRowsAreNeverDrawn) {
  EngineOptions options;
  options.model_dir = "models/nano";
  options.valid_vocab = 40;
  auto engine = Engine::load(options);
  ASSERT_TRUE(engine);
  const Output output = run(**engine, request_of({1, 2, 3}, 2.0F, 1, 200));
  ASSERT_EQ(output.tokens.size(), 200U);
  for (const int32_t token : output.tokens) EXPECT_LT(token, 40);
}

TEST(Engine, PromptLogprobsScoreEveryToken) {
  const auto engine = load_engine("models/nano");
  ASSERT_NE(engine, nullptr);
  Request request = request_of({}, 0.0F, 0, 1);
  for (int at = 0; at < 150; ++at) request.prompt.push_back((at * 7) % 500);
  request.prompt_logprobs = true;
  const Output output = run(*engine, request);
  ASSERT_EQ(output.last.prompt_logprobs.size(), 149U);
  for (const float logprob : output.last.prompt_logprobs) EXPECT_LE(logprob, 0.0F);
}

}  // namespace
}  // namespace tessera::test
