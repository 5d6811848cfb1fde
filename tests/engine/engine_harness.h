// SPDX-License-Identifier: Apache-2.0
// Loads the shipped models and runs requests to their end, for tests of the public engine.
#pragma once

#include <gtest/gtest.h>
#include <tessera/engine.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::test {

inline std::unique_ptr<Engine> load_engine(const EngineOptions& options) {
  auto engine = Engine::load(options);
  EXPECT_TRUE(engine) << (engine ? "" : engine.error().message());
  return engine ? std::move(*engine) : nullptr;
}

inline std::unique_ptr<Engine> load_engine(const std::string& dir = "models/tiny",
                                           int max_context = 0) {
  EngineOptions options;
  options.model_dir = dir;
  options.max_context = max_context;
  return load_engine(options);
}

struct Output {
  std::vector<int32_t> tokens;
  Event last;
};

inline Output drain(Generation& generation) {
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

inline Output run(Engine& engine, Request request) {
  auto generation = engine.submit(std::move(request));
  EXPECT_TRUE(generation) << (generation ? "" : generation.error().message());
  return generation ? drain(*generation) : Output{};
}

inline std::vector<int32_t> prompt_of(int length, int32_t salt = 0) {
  std::vector<int32_t> prompt;
  for (int at = 0; at < length; ++at) prompt.push_back((at * 131 + salt * 977 + 17) % 8000);
  return prompt;
}

inline Request request_of(std::vector<int32_t> prompt, float temperature, uint64_t seed,
                          int max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = temperature;
  request.sampling.seed = seed;
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

}  // namespace tessera::test
