// SPDX-License-Identifier: Apache-2.0
// What the engine refuses, and what one failing or leaving request does to the others: nothing.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "eval/forwarding_ops.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "runtime/engine_loop.h"
#include "tests/engine/engine_harness.h"

namespace tessera::test {
namespace {

/// Fails one draw of a round, as a device does that cannot launch.
class FailingDraw final : public ForwardingOps {
 public:
  FailingDraw(ops::Ops& inner, int at) : ForwardingOps(inner), left_(at) {}
  void draw(const ops::DrawArgs& args) override {
    if (left_-- == 0) throw std::runtime_error("no launch");
    ForwardingOps::draw(args);
  }

 private:
  int left_;
};

/// A copy of models/nano in which the embedding of one token is NaN.
class PoisonedModel {
 public:
  explicit PoisonedModel(int32_t token)
      : dir_(std::filesystem::path(testing::TempDir()) / "tessera_poisoned") {
    using std::filesystem::copy_options;
    std::filesystem::copy("models/nano", dir_,
                          copy_options::recursive | copy_options::overwrite_existing);
    const auto file = (dir_ / "model.safetensors").string();
    uint64_t at = 0;
    {
      const auto mapped = MappedFile::open(file).value();
      const TensorMap tensors = parse_safetensors(mapped->bytes(), file).value();
      const TensorRef& table = tensors.at("model.language_model.embed_tokens.weight");
      const auto* begin = reinterpret_cast<const std::byte*>(mapped->bytes().data());
      at = static_cast<uint64_t>(table.data - begin) +
           static_cast<uint64_t>(token * table.shape[1]) * sizeof(uint16_t);
    }
    const uint16_t nan = 0x7FC0;
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(static_cast<std::streamoff>(at));
    out.write(reinterpret_cast<const char*>(&nan), sizeof nan);
  }
  ~PoisonedModel() { std::filesystem::remove_all(dir_); }
  std::string dir() const { return dir_.string(); }

 private:
  std::filesystem::path dir_;
};

TEST(EngineFaults, RefusesWhatDoesNotFit) {
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

TEST(EngineFaults, BadOptionsAreErrors) {
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

TEST(EngineFaults, CancellingOneRequestLeavesTheOthers) {
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

TEST(EngineFaults, StatesOfAnotherModelAreRefused) {
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
  ASSERT_TRUE(generation) << generation.error().message();
  const Output failed = drain(*generation);
  EXPECT_EQ(failed.last.reason, FinishReason::kError);
  ASSERT_TRUE(failed.last.error.has_value());
  EXPECT_EQ(failed.last.error->code, Errc::kMismatch);
  auto saved = engine->save_state(output.last.state, path);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, Errc::kMismatch);
  EXPECT_EQ(run(*engine, request_of({1, 2, 3}, 0.0F, 0, 3)).tokens.size(), 3U);
}

TEST(EngineFaults, QueuedRequestsGetTheirLastEventToo) {
  EngineOptions options;
  options.model_dir = "models/tiny";
  options.max_sequences = 1;
  auto engine = Engine::load(options);
  ASSERT_TRUE(engine);
  Generation running = std::move(*(*engine)->submit(request_of(prompt_of(40), 0.0F, 0, 20000)));
  running.next();
  Generation cancelled = std::move(*(*engine)->submit(request_of(prompt_of(40), 0.0F, 0, 20000)));
  Generation waiting = std::move(*(*engine)->submit(request_of(prompt_of(40), 0.0F, 0, 20000)));
  cancelled.cancel();
  EXPECT_EQ(drain(cancelled).last.reason, FinishReason::kCancelled);
  engine->reset();
  for (Generation* generation : {&running, &waiting}) {
    const Output output = drain(*generation);
    EXPECT_EQ(output.last.reason, FinishReason::kError);
    ASSERT_TRUE(output.last.error.has_value());
    EXPECT_EQ(output.last.error->code, Errc::kCancelled);
  }
}

TEST(EngineFaults, AnotherEngineWithMoreThreadsDoesNotDisturb) {
  EngineOptions options;
  options.model_dir = "models/tiny";
  options.threads = 1;
  auto engine = Engine::load(options);
  ASSERT_TRUE(engine);
  const Request request = request_of(prompt_of(700), 0.0F, 0, 60);
  const Output want = run(**engine, request);
  Generation running = std::move(*(*engine)->submit(request));
  options.threads = 16;
  for (int loads = 0; loads < 5; ++loads) {
    auto other = Engine::load(options);
    ASSERT_TRUE(other);
    EXPECT_EQ(run(**other, request_of(prompt_of(100), 0.0F, 0, 3)).tokens.size(), 3U);
  }
  EXPECT_EQ(drain(running).tokens, want.tokens);
}

TEST(EngineFaults, AHugeSelectionBudgetIsAsGoodAsTheWholeContext) {
  EngineOptions options;
  options.model_dir = "models/nano";
  options.max_context = 256;
  options.indexer_budget = 2000000000;
  auto engine = Engine::load(options);
  ASSERT_TRUE(engine) << engine.error().message();
  EXPECT_EQ((*engine)->info().indexer_budget, 256);
  EXPECT_EQ(run(**engine, request_of(std::vector<int32_t>(200, 3), 0.0F, 0, 20)).tokens.size(),
            20U);
  options.max_sequences = 1 << 30;
  EXPECT_FALSE(Engine::load(options));
}

TEST(EngineFaults, NotANumberFailsItsRequestAndNoOther) {
  constexpr int32_t kPoisoned = 5;
  const PoisonedModel model(kPoisoned);
  const auto engine = load_engine(model.dir());
  ASSERT_NE(engine, nullptr);
  const Request healthy = request_of({1, 2, 3}, 0.0F, 0, 40);
  const Output want = run(*engine, healthy);
  ASSERT_EQ(want.tokens.size(), 40U);
  Generation other = std::move(*engine->submit(healthy));
  const Output poisoned = run(*engine, request_of({1, kPoisoned, 3}, 0.0F, 0, 40));
  EXPECT_EQ(poisoned.last.reason, FinishReason::kError);
  ASSERT_TRUE(poisoned.last.error.has_value());
  EXPECT_EQ(poisoned.last.error->code, Errc::kNumerics);
  EXPECT_TRUE(poisoned.tokens.empty()) << "no token may be made up from NaN";
  EXPECT_EQ(drain(other).tokens, want.tokens);
  Request scored = request_of({1, kPoisoned, 3}, 0.0F, 0, 1);
  scored.prompt_logprobs = true;
  const Output score = run(*engine, scored);
  ASSERT_TRUE(score.last.error.has_value());
  EXPECT_EQ(score.last.error->code, Errc::kNumerics);
  EXPECT_EQ(engine->stats().failed_requests, 2U);
}

TEST(EngineFaults, DestroyingTheEngineEndsOpenRequests) {
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

TEST(EngineFaults, ARoundThatCannotBeLaunchedEndsItsRequestsAlone) {
  EngineOptions options;
  options.model_dir = "models/nano";
  options.rounds = RoundDriver::kDevice;
  constexpr int kTokens = 12;
  Request request = request_of({1, 2, 3}, 0, 0, kTokens);
  request.ignore_eos = true;
  request.draft = 0;
  const std::vector<int32_t> want = run(*load_engine(options), request).tokens;
  ASSERT_EQ(want.size(), kTokens);
  for (const int at : {0, 1, 4}) {
    auto model = LoadedModel::load(options);
    ASSERT_TRUE(model);
    FailingDraw failing((*model)->ops(), at);
    (*model)->replace_ops(failing);
    EngineLoop loop(std::move(*model));
    Generation first(loop.enqueue(request)), second(loop.enqueue(request));
    EXPECT_EQ(drain(first).last.reason, FinishReason::kError) << at;
    drain(second);
    Generation third(loop.enqueue(request));
    EXPECT_EQ(drain(third).tokens, want) << "reports are out of step after " << at;
  }
}

}  // namespace
}  // namespace tessera::test
