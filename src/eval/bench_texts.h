// SPDX-License-Identifier: Apache-2.0
// Texts that a bench goes on with: one that is easy to guess, prose, and random ids.
#pragma once

#include <tessera/error.h>
#include <tessera/sampling.h>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Prompts of one kind, one for each sequence of a batch, and how their continuations are drawn.
struct BenchText {
  std::string name{};
  std::vector<std::vector<int32_t>> prompts{};
  SamplingParams sampling{};  // the seed is the first prompt's, each has its own from there on
};

/// "counting" and "prose" where `tokenizer_dir` has a tokenizer (empty: none is looked for), and
/// "random" of each of `contexts` tokens. Errors: those of the tokenizer.
Result<std::vector<BenchText>> bench_texts(const std::string& tokenizer_dir, int vocab,
                                           const std::vector<int>& contexts, int num_prompts);

/// Random ids: routing and block selection spread as on text without structure. Another `stream`
/// has other ids.
std::vector<int32_t> random_ids(size_t count, int vocab, int stream = 0);

}  // namespace tessera
