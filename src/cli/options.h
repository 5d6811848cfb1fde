// SPDX-License-Identifier: Apache-2.0
// The command line as plain values; only options.cpp knows the parsing library.
#pragma once

#include <tessera/bench.h>
#include <tessera/engine.h>
#include <tessera/shortlist.h>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::cli {

/// What the user set; the rest comes from the model's generation_config.json.
struct SamplingOverrides {
  std::optional<float> temperature{};
  std::optional<int> top_k{};
  std::optional<float> top_p{};
  std::optional<float> min_p{};
  std::optional<float> repetition_penalty{};
  std::optional<float> presence_penalty{};
  std::optional<float> frequency_penalty{};
  std::vector<std::pair<int32_t, float>> logit_bias{};
  uint64_t seed = 0;
};

/// Or less, where the context leaves less.
inline constexpr int kDefaultMaxTokens = 1024;

struct RunArgs {
  EngineOptions engine{};
  std::optional<std::string> prompt{};
  std::string system{};
  SamplingOverrides sampling{};
  std::optional<int> max_tokens{};  // 0: until the context is full; unset: kDefaultMaxTokens
  std::vector<std::string> stop{};
  std::optional<int> logprobs{};
  std::string save_state{};
  std::string load_state{};
  bool no_think = false;
  bool raw = false;  // the prompt is the model's input as it stands
  bool ignore_eos = false;
  int draft = kDraftAuto;  // tokens that the draft layer proposes a round
  bool json = false;
  bool stats = false;
};

struct InfoArgs {
  EngineOptions engine{};
  bool json = false;
};

struct VerifyArgs {
  EngineOptions engine{};
  std::string reference{};  // empty: the reference file next to the model
  bool json = false;
};

struct EvalArgs {
  EngineOptions engine{};
  std::string text{};  // file, "-" is standard input
  bool json = false;
};

struct BenchArgs {
  BenchOptions bench{};
  bool json = false;
};

struct ShortlistArgs {
  std::string model_dir{};
  std::vector<std::string> corpus{};  // text files
  size_t size = kDefaultShortlistSize;
  std::string output{};
};

using Command = std::variant<RunArgs, InfoArgs, VerifyArgs, EvalArgs, BenchArgs, ShortlistArgs>;

inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;  // 128 + SIGINT, as shells report it

struct CommandLine {
  Command command{};
  bool verbose = false;  // what the library says about loading and kernels
};

/// The command, or the exit status after help or a usage message has been printed.
tl::expected<CommandLine, int> parse_command_line(int argc, const char* const* argv);

}  // namespace tessera::cli
