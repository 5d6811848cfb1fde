// SPDX-License-Identifier: Apache-2.0
// The command line: what is accepted, what is refused with the status of a usage error.
#include "cli/options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::cli {
namespace {

tl::expected<CommandLine, int> parse_line(std::vector<const char*> words) {
  words.insert(words.begin(), "tessera");
  return parse_command_line(static_cast<int>(words.size()), words.data());
}

tl::expected<Command, int> parse(const std::vector<const char*>& words) {
  const auto line = parse_line(words);
  if (!line) return tl::unexpected(line.error());
  return line->command;
}

/// Help and usage messages of CLI11 would clutter the test's own output.
class OptionsTest : public testing::Test {
 protected:
  void SetUp() override {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
  }
  void TearDown() override {
    testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
  }

  static RunArgs run_args(const std::vector<const char*>& words) {
    const auto command = parse(words);
    EXPECT_TRUE(command.has_value());
    return command ? std::get<RunArgs>(*command) : RunArgs{};
  }
};

TEST_F(OptionsTest, RunKeepsWhatTheUserLeftOpen) {
  const RunArgs args = run_args({"run"});
  EXPECT_FALSE(args.prompt.has_value());
  EXPECT_FALSE(args.sampling.temperature.has_value());
  EXPECT_FALSE(args.logprobs.has_value());
  EXPECT_FALSE(args.max_tokens.has_value());
  EXPECT_TRUE(args.engine.model_dir.empty());
  EXPECT_EQ(args.engine.ops, OpsKind::kFast);
  EXPECT_EQ(args.engine.cache_type, CacheType::kAuto);
}

TEST_F(OptionsTest, RunReadsEveryOption) {
  const RunArgs args = run_args({"run",
                                 "-m",
                                 "dir",
                                 "-p",
                                 "hello",
                                 "--system",
                                 "be brief",
                                 "--no-think",
                                 "--temperature",
                                 "0.5",
                                 "--top-k",
                                 "7",
                                 "--top-p",
                                 "0.9",
                                 "--min-p",
                                 "0.1",
                                 "--seed",
                                 "18446744073709551615",
                                 "--repetition-penalty",
                                 "1.1",
                                 "--presence-penalty",
                                 "-0.5",
                                 "--frequency-penalty",
                                 "0.25",
                                 "--max-tokens",
                                 "9",
                                 "--ctx",
                                 "128",
                                 "--threads",
                                 "3",
                                 "--indexer-budget",
                                 "64",
                                 "--ops",
                                 "reference",
                                 "--kv-cache-dtype",
                                 "bf16",
                                 "--ignore-eos",
                                 "--stats",
                                 "--json",
                                 "--logprobs",
                                 "2",
                                 "--save-state",
                                 "file"});
  EXPECT_EQ(args.engine.model_dir, "dir");
  EXPECT_EQ(args.prompt, "hello");
  EXPECT_EQ(args.system, "be brief");
  EXPECT_TRUE(args.no_think && args.ignore_eos && args.stats && args.json);
  EXPECT_EQ(args.sampling.temperature, 0.5F);
  EXPECT_EQ(args.sampling.top_k, 7);
  EXPECT_EQ(args.sampling.top_p, 0.9F);
  EXPECT_EQ(args.sampling.min_p, 0.1F);
  EXPECT_EQ(args.sampling.seed, 18446744073709551615U);
  EXPECT_EQ(args.sampling.repetition_penalty, 1.1F);
  EXPECT_EQ(args.sampling.presence_penalty, -0.5F);
  EXPECT_EQ(args.sampling.frequency_penalty, 0.25F);
  EXPECT_EQ(args.max_tokens, 9);
  EXPECT_EQ(args.engine.max_context, 128);
  EXPECT_EQ(args.engine.threads, 3);
  EXPECT_EQ(args.engine.indexer_budget, 64);
  EXPECT_EQ(args.engine.ops, OpsKind::kReference);
  EXPECT_EQ(args.engine.cache_type, CacheType::kBF16);
  EXPECT_EQ(args.logprobs, 2);
  EXPECT_EQ(args.save_state, "file");
}

TEST_F(OptionsTest, RepeatedStopsAndBiasesAddUp) {
  const RunArgs args = run_args(
      {"run", "--stop", "a b", "--stop", "", "--logit-bias", "4=-1.5", "--logit-bias", "0=100"});
  EXPECT_EQ(args.stop, (std::vector<std::string>{"a b", ""}));
  const std::vector<std::pair<int32_t, float>> biases{{4, -1.5F}, {0, 100.0F}};
  EXPECT_EQ(args.sampling.logit_bias, biases);
}

TEST_F(OptionsTest, AStopTextIsUtf8) {
  for (const char* const text : {"z", "\u00E9", "\u4E16", "\U0010FFFF", "\xED\x9F\xBF"})
    EXPECT_TRUE(parse({"run", "--stop", text}).has_value()) << text;
  for (const char* const text :
       {"\x80", "a\xFF", "\xC0\x80", "\xE4\xB8", "\xE4z\x80", "\xED\xA0\x80", "\xE0\x80\x80",
        "\xF0\x80\x80\x80", "\xF4\x90\x80\x80"}) {
    const auto command = parse({"run", "--stop", text});
    ASSERT_FALSE(command.has_value()) << text;
    EXPECT_EQ(command.error(), kExitUsage);
  }
}

TEST_F(OptionsTest, APromptMayLookLikeAnythingAndBeEmpty) {
  EXPECT_EQ(run_args({"run", "-p", ""}).prompt, "");
  EXPECT_EQ(run_args({"run", "-p", "-5"}).prompt, "-5");
  EXPECT_EQ(run_args({"run", "-p", "two\nlines"}).prompt, "two\nlines");
}

TEST_F(OptionsTest, TheOtherCommandsTakeTheModelAsAWord) {
  const auto info = parse({"info", "dir", "--json"});
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(std::get<InfoArgs>(*info).engine.model_dir, "dir");
  EXPECT_TRUE(std::get<InfoArgs>(*info).json);

  const auto verify = parse({"verify", "dir", "--reference", "x.json", "--ops", "reference"});
  ASSERT_TRUE(verify.has_value());
  EXPECT_EQ(std::get<VerifyArgs>(*verify).reference, "x.json");
  EXPECT_EQ(std::get<VerifyArgs>(*verify).engine.ops, OpsKind::kReference);

  const auto eval = parse({"eval", "-m", "dir", "--text", "-"});
  ASSERT_TRUE(eval.has_value());
  EXPECT_EQ(std::get<EvalArgs>(*eval).text, "-");
  EXPECT_EQ(std::get<EvalArgs>(*eval).engine.model_dir, "dir");

  const auto shortlist =
      parse({"shortlist", "--corpus", "a", "b", "--size", "9", "dir", "-o", "list"});
  ASSERT_TRUE(shortlist.has_value());
  const auto& list_args = std::get<ShortlistArgs>(*shortlist);
  EXPECT_EQ(list_args.model_dir, "dir");
  EXPECT_EQ(list_args.corpus, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(list_args.size, 9U);
  EXPECT_EQ(list_args.output, "list");

  const auto bench = parse({"bench", "--contexts", "16,32", "--synthetic", "fp8"});
  ASSERT_TRUE(bench.has_value());
  EXPECT_EQ(std::get<BenchArgs>(*bench).bench.contexts, (std::vector<int>{16, 32}));
  EXPECT_EQ(std::get<BenchArgs>(*bench).bench.synthetic, SyntheticWeights::kFp8);
  EXPECT_FALSE(std::get<BenchArgs>(*bench).bench.draft.has_value());
  const auto drafts = [this](const std::vector<const char*>& words) {
    return std::get<BenchArgs>(*parse(words)).bench.draft.value();
  };
  EXPECT_EQ(drafts({"bench", "--draft", "3"}).depths, std::vector{3});
  EXPECT_EQ(drafts({"bench", "--draft", "3"}).batches, std::vector{1});
  EXPECT_EQ(drafts({"bench", "--draft", "auto"}).depths, std::vector{kDraftAuto});
  for (const auto& words : std::vector<std::vector<const char*>>{
           {"bench", "--draft", "sweep", "--batch", "1,4,8", "--draft-tokens", "48"},
           {"bench", "--draft-tokens", "48", "--batch", "1,4,8", "--draft", "sweep"}}) {
    EXPECT_TRUE(drafts(words).depths.empty());
    EXPECT_EQ(drafts(words).batches, (std::vector{1, 4, 8}));
    EXPECT_EQ(drafts(words).tokens, 48);
  }
}

TEST_F(OptionsTest, VerboseMayStandOnEitherSideOfTheCommand) {
  for (const auto& words : std::vector<std::vector<const char*>>{{"-v", "info"}, {"info", "-v"}}) {
    const auto line = parse_line(words);
    ASSERT_TRUE(line.has_value());
    EXPECT_TRUE(line->verbose);
  }
  EXPECT_FALSE(parse_line({"info"})->verbose);
}

TEST_F(OptionsTest, HelpAndVersionAreNoErrors) {
  for (const auto& words : std::vector<std::vector<const char*>>{
           {"--help"}, {"--version"}, {"run", "--help"}, {"bench", "-h"}}) {
    const auto command = parse(words);
    ASSERT_FALSE(command.has_value());
    EXPECT_EQ(command.error(), kExitOk);
  }
}

TEST_F(OptionsTest, WrongUseEndsWithTwo) {
  for (const auto& words : std::vector<std::vector<const char*>>{{},
                                                                 {"frobnicate"},
                                                                 {"run", "surplus"},
                                                                 {"run", "--ops", "quick"},
                                                                 {"run", "--kv-cache-dtype", "f16"},
                                                                 {"run", "--temperature", "warm"},
                                                                 {"run", "--max-tokens", "-1"},
                                                                 {"run", "--threads", "-2"},
                                                                 {"run", "--logit-bias", "4:1"},
                                                                 {"run", "--logit-bias", "=1"},
                                                                 {"run", "--logit-bias", "4=x"},
                                                                 {"run", "--logit-bias", "4=1 "},
                                                                 {"run", "--logprobs", "2"},
                                                                 {"run", "--raw", "--system", "x"},
                                                                 {"run", "-p"},
                                                                 {"eval", "dir"},
                                                                 {"info", ""},
                                                                 {"run", "--seed", "-1"},
                                                                 {"run", "--seed", ""},
                                                                 {"run", "--draft", "-1"},
                                                                 {"run", "--draft", "many"},
                                                                 {"shortlist", "-o", "list"},
                                                                 {"shortlist", "--corpus", "a"},
                                                                 {"bench", "--draft", "-1"},
                                                                 {"bench", "--draft", "deep"},
                                                                 {"bench", "--batch", "4"},
                                                                 {"bench", "--draft-tokens", "64"},
                                                                 {"bench", "--contexts", "0"}}) {
    const auto command = parse(words);
    ASSERT_FALSE(command.has_value()) << (words.empty() ? "no words" : words.back());
    EXPECT_EQ(command.error(), kExitUsage);
  }
}

}  // namespace
}  // namespace tessera::cli
