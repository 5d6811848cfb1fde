// SPDX-License-Identifier: Apache-2.0
// The one file that includes CLI11: it takes seconds to compile.
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <limits>
#include <map>
#include <string_view>

namespace tessera::cli {
namespace {

using Bias = std::pair<int32_t, float>;

Bias parse_bias(const std::string& text) {
  const char* const end = text.data() + text.size();
  Bias bias{0, 0.0F};
  const auto id = std::from_chars(text.data(), end, bias.first);
  if (id.ec == std::errc{} && id.ptr != end && *id.ptr == '=') {
    const auto value = std::from_chars(id.ptr + 1, end, bias.second);
    if (value.ec == std::errc{} && value.ptr == end) return bias;
  }
  throw CLI::ValidationError("--logit-bias", "expected ID=VALUE, as 42=-1.5, found " + text);
}

/// A check whose message names the values, not the limits of the C++ type behind them.
template <class Int>
CLI::Validator whole_number_from(Int least) {
  const auto check = [least](const std::string& text) -> std::string {
    Int value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, code] = std::from_chars(text.data(), end, value);
    if (code == std::errc{} && rest == end && value >= least) return {};
    const bool too_large = code == std::errc::result_out_of_range && !text.starts_with('-');
    const std::string range = too_large ? "up to " + std::to_string(std::numeric_limits<Int>::max())
                                        : "from " + std::to_string(least) + " on";
    return "expected a whole number " + range + ", found " + text;
  };
  return {check, ""};
}

/// Bytes that follow `lead` in UTF-8, -1 when it starts no character.
int continuation_bytes(unsigned char lead) {
  if (lead < 0x80) return 0;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  return lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text.front());
    const int more = continuation_bytes(lead);
    if (more < 0 || text.size() <= static_cast<size_t>(more)) return false;
    for (const char byte : text.substr(1, static_cast<size_t>(more)))
      if ((static_cast<unsigned char>(byte) & 0xC0) != 0x80) return false;
    const auto second = static_cast<unsigned char>(more > 0 ? text[1] : 0);
    // Overlong forms, surrogates, and what lies beyond U+10FFFF.
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return false;
    if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return false;
    text.remove_prefix(static_cast<size_t>(more) + 1);
  }
  return true;
}

/// The text of an answer is UTF-8: other bytes would never be found in it.
CLI::Validator utf8_text() {
  return {[](const std::string& text) {
            return std::string(is_utf8(text) ? "" : "expected UTF-8 text, found other bytes");
          },
          ""};
}

CLI::Validator folder_name() {
  return {[](const std::string& text) {
            return std::string(text.empty() ? "expected a folder, found an empty name" : "");
          },
          ""};
}

/// An option whose values are names, listed in the help and in the message about a wrong one.
template <class Value>
void add_choice(CLI::App& app, const std::string& name, Value& value,
                const std::map<std::string, Value>& choices, const std::string& help,
                const std::string& group) {
  app.add_option_function<std::string>(
         name, [&value, choices](const std::string& chosen) { value = choices.at(chosen); }, help)
      ->check(CLI::IsMember(choices))
      ->type_name("NAME")
      ->group(group);
}

void add_engine_options(CLI::App& app, EngineOptions& engine) {
  const std::string group = "Engine";
  app.add_option("--device", engine.device, "Where to compute: cpu, cuda or cuda:N")
      ->type_name("NAME")
      ->group(group);
  app.add_option("--threads", engine.threads, "Threads, 0 for all cores")
      ->check(whole_number_from(0))
      ->group(group);
  app.add_option("--ctx", engine.max_context, "Context in tokens, 0 for what the model declares")
      ->check(whole_number_from(0))
      ->group(group);
  add_choice<OpsKind>(app, "--ops", engine.ops,
                      {{"fast", OpsKind::kFast}, {"reference", OpsKind::kReference}},
                      "Kernels: SIMD and threads (default), or the short oracle", group);
  add_choice<CacheType>(app, "--kv-cache-dtype", engine.cache_type,
                        {{"auto", CacheType::kAuto},
                         {"f32", CacheType::kF32},
                         {"bf16", CacheType::kBF16},
                         {"fp8", CacheType::kF8}},
                        "Storage of keys and values: f32 on a CPU, bf16 on a device", group);
  app.add_option("--memory-fraction", engine.memory_fraction,
                 "Share of the device memory left after the weights that cache pages may take")
      ->check(CLI::Range(0.01, 1.0))
      ->group(group);
  add_choice<RoundDriver>(app, "--rounds", engine.rounds,
                          {{"auto", RoundDriver::kAuto},
                           {"host", RoundDriver::kHost},
                           {"device", RoundDriver::kDevice}},
                          "Who drives decode rounds: device reads tokens one round later", group);
  app.add_flag("!--no-graphs", engine.record_steps,
               "Launch every kernel of a decode step by itself")
      ->group(group);
  app.add_flag("!--no-pdl", engine.overlap_kernels, "No kernel starts before its predecessor ended")
      ->group(group);
  app.add_option("--indexer-budget", engine.indexer_budget,
                 "Tokens that sparse attention may select, 0 for the model's own number")
      ->check(whole_number_from(0))
      ->group(group);
}

void add_model_folder(CLI::App& app, EngineOptions& engine) {
  app.add_option("DIR,-m,--model", engine.model_dir,
                 "Model folder (default: models/tiny near the program)")
      ->check(folder_name());
}

void add_json(CLI::App& app, bool& json) { app.add_flag("--json", json, "Print JSON"); }

void add_sampling_options(CLI::App& app, SamplingOverrides& sampling) {
  const std::string group = "Sampling (defaults: generation_config.json of the model)";
  app.add_option("--temperature", sampling.temperature, "0 takes the best token")->group(group);
  app.add_option("--top-k", sampling.top_k, "0 is off")->group(group);
  app.add_option("--top-p", sampling.top_p, "1 is off")->group(group);
  app.add_option("--min-p", sampling.min_p, "0 is off")->group(group);
  app.add_option("--repetition-penalty", sampling.repetition_penalty, "1 is off")->group(group);
  app.add_option("--presence-penalty", sampling.presence_penalty, "0 is off")->group(group);
  app.add_option("--frequency-penalty", sampling.frequency_penalty, "0 is off")->group(group);
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&sampling](const std::vector<std::string>& values) {
           for (const std::string& value : values) sampling.logit_bias.push_back(parse_bias(value));
         },
         "Add VALUE to the logit of token ID; may be repeated")
      ->type_name("ID=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_option("--seed", sampling.seed, "The same seed gives the same text (default 0)")
      ->check(whole_number_from(uint64_t{0}))
      ->group(group);
}

/// A whole number, or "auto".
int parse_draft(const std::string& text) {
  if (text == "auto") return kDraftAuto;
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, value);
  if (code == std::errc{} && rest == end && value >= 0) return value;
  throw CLI::ValidationError("--draft", "expected auto or a whole number from 0 on, found " + text);
}

void add_generation_options(CLI::App& app, RunArgs& args) {
  const std::string group = "Generation";
  app.add_option("--max-tokens", args.max_tokens,
                 "0: until the context is full (default: " + std::to_string(kDefaultMaxTokens) +
                     ", or what the context leaves)")
      ->check(whole_number_from(0))
      ->group(group);
  app.add_option("--stop", args.stop, "Stop before this text; may be repeated")
      ->check(utf8_text())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(group);
  app.add_flag("--ignore-eos", args.ignore_eos, "Go on through end-of-text tokens")->group(group);
  app.add_option_function<std::string>(
         "--draft", [&args](const std::string& text) { args.draft = parse_draft(text); },
         "Tokens that the draft layer proposes a round; the text is the same for every number "
         "(default: auto, 0 is off)")
      ->type_name("N")
      ->group(group);
  app.add_flag("--draft-share-selection", args.engine.draft_share_selection,
               "Let all drafts of a round attend to what the first one selected")
      ->group(group);
  add_choice<DraftHead>(
      app, "--draft-head", args.engine.draft_head,
      {{"auto", DraftHead::kAuto}, {"whole", DraftHead::kWhole}, {"fp8", DraftHead::kFp8}},
      "Head that drafts are drawn with: the model's, or the same in FP8 (default)", group);
  app.add_option("--draft-shortlist", args.engine.draft_shortlist,
                 "Draft among the tokens of this list only (see tessera shortlist)")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--logprobs", args.logprobs, "Log-probabilities, and the N best (with --json)")
      ->type_name("N")
      ->check(whole_number_from(0))
      ->needs("--json")
      ->group(group);
  app.add_option("--save-state", args.save_state, "Save the sequence state when done")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--load-state", args.load_state, "Go on from a saved state")
      ->type_name("FILE")
      ->excludes("--system")
      ->group(group);
}

CLI::App* declare_run(CLI::App& app, RunArgs& args) {
  CLI::App* run = app.add_subcommand("run", "Answer one prompt, or chat when there is none");
  run->add_option("-m,--model", args.engine.model_dir,
                  "Model folder (default: models/tiny near the program)")
      ->check(folder_name());
  run->add_option("-p,--prompt", args.prompt,
                  "What to answer; without it a chat on a terminal, else standard input");
  run->add_option("--system", args.system, "System message");
  run->add_flag("--no-think", args.no_think, "Ask the template for an answer without thinking");
  run->add_flag("--raw", args.raw, "No chat template: continue the prompt as it stands")
      ->excludes("--system")
      ->excludes("--no-think");
  add_json(*run, args.json);
  run->add_flag("--stats", args.stats, "Token counts and speed on standard error");
  add_generation_options(*run, args);
  add_sampling_options(*run, args.sampling);
  add_engine_options(*run, args.engine);
  return run;
}

CLI::App* declare_info(CLI::App& app, InfoArgs& args) {
  CLI::App* info = app.add_subcommand("info", "What a model folder holds and how it would run");
  add_model_folder(*info, args.engine);
  add_json(*info, args.json);
  add_engine_options(*info, args.engine);
  return info;
}

CLI::App* declare_verify(CLI::App& app, VerifyArgs& args) {
  CLI::App* verify = app.add_subcommand("verify", "Compare the engine with reference outputs");
  add_model_folder(*verify, args.engine);
  verify
      ->add_option("--reference", args.reference,
                   "golden .safetensors or reference .json (default: the one in DIR)")
      ->type_name("FILE");
  add_json(*verify, args.json);
  add_engine_options(*verify, args.engine);
  return verify;
}

CLI::App* declare_eval(CLI::App& app, EvalArgs& args) {
  CLI::App* eval = app.add_subcommand("eval", "Perplexity of a text");
  add_model_folder(*eval, args.engine);
  eval->add_option("--text", args.text, "Text file, - for standard input")
      ->type_name("FILE")
      ->required();
  add_json(*eval, args.json);
  add_engine_options(*eval, args.engine);
  return eval;
}

void add_draft_options(CLI::App& bench, std::optional<DraftBenchOptions>& draft) {
  const auto chosen = [&draft]() -> DraftBenchOptions& { return draft ? *draft : draft.emplace(); };
  bench
      .add_option_function<std::string>(
          "--draft",
          [chosen](const std::string& text) {
            chosen().depths.clear();
            if (text != "sweep") chosen().depths.push_back(parse_draft(text));
          },
          "Also measure drafts in turns with plain decoding: N a round, auto, or sweep for every N "
          "and auto")
      ->type_name("N");
  bench
      .add_option_function<std::vector<int>>(
          "--batch", [chosen](const std::vector<int>& sizes) { chosen().batches = sizes; },
          "Sequences at once, as 1,4,8 (default: 1)")
      ->delimiter(',')
      ->check(whole_number_from(1))
      ->type_name("N")
      ->needs("--draft");
  bench
      .add_option_function<int>(
          "--draft-tokens", [chosen](int tokens) { chosen().tokens = tokens; },
          "Generated by a sequence at each depth, 3 + 1 times (default: " +
              std::to_string(DraftBenchOptions{}.tokens) + ")")
      ->check(whole_number_from(2))
      ->type_name("N")
      ->needs("--draft");
}

CLI::App* declare_bench(CLI::App& app, BenchArgs& args) {
  CLI::App* bench = app.add_subcommand("bench", "Speed at growing contexts, against ceilings");
  add_model_folder(*bench, args.bench.engine);
  add_choice<SyntheticWeights>(*bench, "--synthetic", args.bench.synthetic,
                               {{"bf16", SyntheticWeights::kBf16}, {"fp8", SyntheticWeights::kFp8}},
                               "Released geometry with random weights instead of a model",
                               "Options");
  bench
      ->add_option("--layers", args.bench.synthetic_layers,
                   "Synthetic layers of the whole geometry with 512 experts, 0 for a small cut")
      ->needs("--synthetic")
      ->check(whole_number_from(0));
  bench->add_option("--contexts", args.bench.contexts, "Context lengths, as 128,512,2048")
      ->delimiter(',')
      ->check(whole_number_from(1));
  bench->add_option("--decode-tokens", args.bench.decode_tokens, "Generated at each context")
      ->check(whole_number_from(1))
      ->capture_default_str();
  add_draft_options(*bench, args.bench.draft);
  add_json(*bench, args.json);
  add_engine_options(*bench, args.bench.engine);
  return bench;
}

CLI::App* declare_shortlist(CLI::App& app, ShortlistArgs& args) {
  CLI::App* shortlist =
      app.add_subcommand("shortlist", "Frequent tokens of some texts, for run --draft-shortlist");
  shortlist
      ->add_option("DIR,-m,--model", args.model_dir,
                   "Model folder (default: models/tiny near the program)")
      ->check(folder_name());
  shortlist->add_option("--corpus", args.corpus, "Text files like those to be written")
      ->type_name("FILE...")
      ->required();
  shortlist->add_option("--size", args.size, "Most frequent tokens to list, beside special ones")
      ->check(whole_number_from(size_t{1}))
      ->capture_default_str();
  shortlist->add_option("-o,--output", args.output, "The list")->type_name("FILE")->required();
  return shortlist;
}

/// CLI11 prints help itself; its many error codes become one.
int report(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == kExitOk) return app.exit(error);
  std::string message = error.what();
  const std::vector<std::string> left = app.remaining();
  if (app.get_subcommands().empty() && !left.empty() && !left.front().starts_with('-'))
    message = "unknown command " + left.front();
  std::fprintf(stderr, "tessera: %s\nRun with --help for more information.\n", message.c_str());
  return kExitUsage;
}

}  // namespace

tl::expected<CommandLine, int> parse_command_line(int argc, const char* const* argv) {
  CLI::App app{"Tessera runs Qwen3.8-Flash-Next models.", "tessera"};
  app.set_version_flag("--version", "tessera " TESSERA_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "Log loading and the choice of kernels");
  RunArgs run;
  InfoArgs info;
  VerifyArgs verify;
  EvalArgs eval;
  BenchArgs bench;
  const CLI::App* const run_app = declare_run(app, run);
  const CLI::App* const info_app = declare_info(app, info);
  const CLI::App* const verify_app = declare_verify(app, verify);
  const CLI::App* const eval_app = declare_eval(app, eval);
  const CLI::App* const bench_app = declare_bench(app, bench);
  ShortlistArgs shortlist;
  declare_shortlist(app, shortlist);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return tl::unexpected(report(app, error));
  }
  if (*run_app) return CommandLine{run, verbose};
  if (*info_app) return CommandLine{info, verbose};
  if (*verify_app) return CommandLine{verify, verbose};
  if (*eval_app) return CommandLine{eval, verbose};
  if (*bench_app) return CommandLine{bench, verbose};
  return CommandLine{shortlist, verbose};
}

}  // namespace tessera::cli
