// SPDX-License-Identifier: Apache-2.0
// The public engine on the shipped models: determinism, limits, cancellation, saved states.
#include <gtest/gtest.h>
#include <tessera/engine.h>

#include <cstdio>
#include <thread>

namespace tessera {
namespace {

std::unique_ptr<Engine> load_engine(const std::string& dir = "models/tiny", int max_context = 0) {
  EngineOptions options;
  options.model_dir = dir;
  options.max_context = max_context;
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine) << (engine ? "" : engine.error().message());
  return engine ? std::move(*engine) : nullptr;
}

struct Output {
  std::vector<int32_t> tokens;
  Event last;
};

Output drain(Generation& generation) {
  Output output;
  for (;;) {
    Event event = generation.next();
    if (event.kind == Event::Kind::kToken) output.tokens.push_back(event.token);
    if (event.kind == Event::Kind::kFinished) {
      output.last = std::move(event);
      return output;
    }
  }
}

Output run(Engine& engine, Request request) {
  auto generation = engine.submit(std::move(request));
  EXPECT_TRUE(generation) << (generation ? "" : generation.error().message());
  return generation ? drain(*generation) : Output{};
}

std::vector<int32_t> prompt_of(int length, int32_t salt = 0) {
  std::vector<int32_t> prompt;
  for (int at = 0; at < length; ++at) prompt.push_back((at * 131 + salt * 977 + 17) % 8000);
  return prompt;
}

Request request_of(std::vector<int32_t> prompt, float temperature, uint64_t seed, int max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

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
}

TEST(Engine, RefusesWhatDoesNotFit) {
  const auto engine = load_engine("models/tiny", 128);
  ASSERT_NE(engine, nullptr);
  auto too_long = engine->submit(request_of(prompt_of(100), 0.0F, 0, 29));
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().code, Errc::kContextLimit);
  for (const char* number : {"128", "100", "29"})
    EXPECT_NE(too_long.error().message().find(number), std::string::npos) << number;
  const Output fits = run(*engine, request_of(prompt_of(100), 0.0F, 0, 28));
  EXPECT_EQ(fits.tokens.size(), 28U);
  const Output until_full = run(*engine, request_of(prompt_of(100), 0.0F, 0, 0));
  EXPECT_EQ(until_full.tokens.size(), 28U);
  EXPECT_EQ(until_full.last.reason, FinishReason::kLength);

  EXPECT_EQ(engine->submit(request_of({}, 0.0F, 0, 1)).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(engine->submit(request_of({-1}, 0.0F, 0, 1)).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(engine->submit(request_of({8192}, 0.0F, 0, 1)).error().code, Errc::kInvalidArgument);
  EXPECT_FALSE(engine->submit(request_of({1}, -1.0F, 0, 1)));
  EXPECT_FALSE(engine->submit(request_of({1}, 0.0F, 0, -1)));
  Request many_logprobs = request_of({1}, 0.0F, 0, 1);
  many_logprobs.top_logprobs = 21;
  EXPECT_FALSE(engine->submit(many_logprobs));
}

TEST(Engine, BadOptionsAreErrors) {
  const auto fails = [](auto change) {
    EngineOptions options;
    options.model_dir = "models/tiny";
    change(options);
    auto engine = Engine::load(options);
    EXPECT_FALSE(engine);
    return engine ? Errc::kInternal : engine.error().code;
  };
  EXPECT_EQ(fails([](EngineOptions& options) { options.device = "quantum"; }), Errc::kUnsupported);
  EXPECT_EQ(fails([](EngineOptions& options) { options.indexer_budget = 7; }),
            Errc::kInvalidArgument);
  EXPECT_EQ(fails([](EngineOptions& options) { options.prefill_chunk = 100; }),
            Errc::kInvalidArgument);
  EXPECT_EQ(fails([](EngineOptions& options) { options.max_context = 1 << 30; }),
            Errc::kInvalidArgument);
  EXPECT_EQ(fails([](EngineOptions& options) { options.max_sequences = 0; }),
            Errc::kInvalidArgument);
  EXPECT_EQ(fails([](EngineOptions& options) { options.threads = -1; }), Errc::kInvalidArgument);
  EXPECT_EQ(fails([](EngineOptions& options) { options.model_dir = "models/absent"; }),
            Errc::kNotFound);
}

TEST(Engine, CancellingOneRequestLeavesTheOthers) {
  const auto engine = load_engine();
  ASSERT_NE(engine, nullptr);
  const Request request = request_of(prompt_of(50), 0.0F, 0, 60);
  const Output want = run(*engine, request);
  Generation kept = std::move(*engine->submit(request));
  Generation cancelled = std::move(*engine->submit(request_of(prompt_of(60), 0.0F, 0, 20000)));
  {
    const Generation dropped =
        std::move(*engine->submit(request_of(prompt_of(70), 0.0F, 0, 20000)));
  }
  cancelled.next();
  cancelled.cancel();
  const Output output = drain(cancelled);
  EXPECT_EQ(output.last.reason, FinishReason::kCancelled);
  EXPECT_LT(output.tokens.size(), 20000U);
  EXPECT_EQ(drain(kept).tokens, want.tokens);
  EXPECT_EQ(cancelled.next().kind, Event::Kind::kFinished) << "the last event repeats";
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

TEST(Engine, StatesOfAnotherModelAreRefused) {
  const auto engine = load_engine();
  const auto nano = load_engine("models/nano");
  ASSERT_NE(engine, nullptr);
  ASSERT_NE(nano, nullptr);
  Request request = request_of({1, 2, 3}, 0.0F, 0, 3);
  request.keep_state = true;
  const Output output = run(*nano, request);
  const std::string path = testing::TempDir() + "tessera_other_model.state";
  ASSERT_TRUE(nano->save_state(output.last.state, path));
  auto loaded = engine->load_state(path);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Errc::kMismatch);
  EXPECT_EQ(engine->load_state(path + ".absent").error().code, Errc::kNotFound);
  std::remove(path.c_str());
  // A live snapshot of another engine must fail that request only.
  Request foreign = request_of({1, 2, 3, 4, 5, 6, 7}, 0.0F, 0, 3);
  foreign.prompt = Engine::state_tokens(output.last.state);
  foreign.prompt.push_back(4);
  foreign.resume_from = output.last.state;
  auto generation = engine->submit(foreign);
  if (generation) {
    const Output failed = drain(*generation);
    EXPECT_EQ(failed.last.reason, FinishReason::kError);
    ASSERT_TRUE(failed.last.error.has_value());
  }
  EXPECT_EQ(run(*engine, request_of({1, 2, 3}, 0.0F, 0, 3)).tokens.size(), 3U);
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

TEST(Engine, DestroyingTheEngineEndsOpenRequests) {
  auto engine = load_engine();
  ASSERT_NE(engine, nullptr);
  Generation open = std::move(*engine->submit(request_of(prompt_of(40), 0.0F, 0, 20000)));
  open.next();
  engine.reset();
  const Output output = drain(open);
  EXPECT_EQ(output.last.reason, FinishReason::kError);
  ASSERT_TRUE(output.last.error.has_value());
  EXPECT_EQ(output.last.error->code, Errc::kCancelled);
}

}  // namespace
}  // namespace tessera
