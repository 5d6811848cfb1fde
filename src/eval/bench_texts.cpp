// SPDX-License-Identifier: Apache-2.0
// Each prompt of a kind is another one, of about the same length.
#include "eval/bench_texts.h"

#include <tessera/tokenizer.h>
#include <algorithm>
#include <filesystem>
#include <iterator>

#include "core/philox.h"

namespace tessera {
namespace {

constexpr uint64_t kTextSeed = 7;
constexpr int kCounted = 60;  // numbers of a text that is easy to go on with
// Greedily, a small model soon repeats itself and everything is easy to guess.
constexpr float kProseTemperature = 0.7F;
constexpr float kRandomTemperature = 1.0F;

/// A prompt begins with any of them and goes on with the others in turn.
constexpr const char* kProse[] = {
    "The lighthouse had been dark for eleven years when the letter came.",
    "Nobody on the island remembered who owned the rock it stood on.",
    "The harbour master, a patient man with a bad knee, spent the autumn reading old deeds.",
    "What he found in the cellar of the town hall was not an owner but a debt.",
    "Someone had borrowed the light, long ago, and had never given it back.",
    "He walked home along the shore that evening and counted the boats.",
    "There were nine of them, all old, and one had no name left on its bow.",
    "His sister had lived in the yellow house until the winter of the storm.",
    "She used to say that a lamp is a promise which somebody else has to keep.",
    "In the morning he wrote to the bank, then to the navy, and then to her.",
    "The answers took a month, and each of them asked for a different form.",
    "Meanwhile the children had found a way in through the coal door.",
    "They came back with a brass screw, two dead moths and a story about a bell.",
    "He believed the part about the moths and asked them to show him the rest.",
    "The stairs were sound, the glass was whole, and the oil had turned to amber.",
    "It would take a week to clean it, he thought, and a year to explain it.",
};

std::string counting(int first) {
  std::string text;
  for (int number = first; number < first + kCounted; ++number)
    text += std::to_string(number) + ", ";
  return text;
}

std::string prose(size_t first) {
  std::string text;
  for (size_t sentence = 0; sentence < std::size(kProse); ++sentence) {
    if (sentence > 0) text += ' ';
    text += kProse[(first + sentence) % std::size(kProse)];
  }
  return text;
}

SamplingParams drawn_at(float temperature) {
  return {.temperature = temperature, .seed = kTextSeed};
}

}  // namespace

std::vector<int32_t> random_ids(size_t count, int vocab, int stream) {
  const uint64_t seed = kTextSeed + static_cast<uint64_t>(stream);
  std::vector<int32_t> ids(count);
  for (size_t at = 0; at < count; ++at)
    ids[at] = static_cast<int32_t>(philox_uniform(seed, at, DrawPurpose::kSample) * vocab);
  return ids;
}

Result<std::vector<BenchText>> bench_texts(const std::string& tokenizer_dir, int vocab,
                                           const std::vector<int>& contexts, int num_prompts) {
  std::vector<BenchText> texts;
  if (!tokenizer_dir.empty() && std::filesystem::exists(tokenizer_dir + "/tokenizer.json")) {
    Result<Tokenizer> tokenizer = Tokenizer::load(tokenizer_dir);
    if (!tokenizer) return fail(std::move(tokenizer.error()));
    BenchText easy{.name = "counting", .sampling = drawn_at(0.0F)};
    BenchText hard{.name = "prose", .sampling = drawn_at(kProseTemperature)};
    for (int prompt = 0; prompt < num_prompts; ++prompt) {
      easy.prompts.push_back(tokenizer->encode(counting(prompt + 1)));
      hard.prompts.push_back(tokenizer->encode(prose(static_cast<size_t>(prompt))));
    }
    texts.push_back(std::move(easy));
    texts.push_back(std::move(hard));
  }
  for (const int context : contexts) {
    BenchText random{.name = "random", .sampling = drawn_at(kRandomTemperature)};
    for (int prompt = 0; prompt < num_prompts; ++prompt)
      random.prompts.push_back(random_ids(static_cast<size_t>(context), vocab, prompt));
    texts.push_back(std::move(random));
  }
  return texts;
}

}  // namespace tessera
