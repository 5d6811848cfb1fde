// SPDX-License-Identifier: Apache-2.0
// The program as a user of a shell meets it: output, exit status, messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <filesystem>
#include <fstream>

#include "cli/child.h"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

constexpr const char* kTiny = "models/tiny";
constexpr const char* kNano = "models/nano";
constexpr const char* kQuestion = "What is 12 + 30?";
constexpr const char* kAnswer = "12 + 30 = 42.";

boost::json::value run_json(std::vector<std::string> words) {
  words.push_back("--json");
  const Outcome outcome = run_program(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1) << "one line";
  boost::json::error_code error;
  auto value = boost::json::parse(outcome.out, error);
  EXPECT_FALSE(error) << outcome.out;
  return value;
}

std::vector<std::string> greedy(std::vector<std::string> more = {}) {
  std::vector<std::string> words{"run", "-m", kTiny, "-p", kQuestion, "--temperature", "0"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(ProgramTest, AnswersAndPrintsNothingElseInAPipe) {
  const Outcome outcome = run_program(greedy());
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, std::string(kAnswer) + "\n");
  EXPECT_EQ(outcome.err, "");
}

TEST(ProgramTest, ReadsThePromptFromAPipe) {
  const Outcome outcome = run_program({"run", "-m", kTiny, "--temperature", "0"}, kQuestion);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, std::string(kAnswer) + "\n");
}

TEST(ProgramTest, BothBackendsGiveTheSameAnswer) {
  EXPECT_EQ(run_program(greedy({"--ops", "reference"})).out, std::string(kAnswer) + "\n");
}

TEST(ProgramTest, FindsTheDefaultModelFromAnywhere) {
  const Outcome outcome = run_program({"run", "-p", kQuestion, "--temperature", "0"}, "", "/");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, std::string(kAnswer) + "\n");
}

TEST(ProgramTest, JsonHoldsTextIdsUsageAndReason) {
  const auto answer = run_json(greedy());
  EXPECT_EQ(answer.at("text").as_string(), kAnswer);
  EXPECT_EQ(answer.at("finish_reason").as_string(), "stop");
  EXPECT_TRUE(answer.at("stop_string").is_null());
  const auto& usage = answer.at("usage");
  EXPECT_EQ(usage.at("cached_tokens").as_int64(), 0);
  EXPECT_GT(usage.at("prompt_tokens").as_int64(), 0);
  EXPECT_EQ(usage.at("completion_tokens").as_int64(),
            static_cast<int64_t>(answer.at("ids").as_array().size()));
}

TEST(ProgramTest, LogprobsDescendAndBeginWithTheGreedyToken) {
  const auto answer = run_json(greedy({"--logprobs", "3"}));
  const auto& tokens = answer.at("logprobs").as_array();
  ASSERT_EQ(tokens.size(), answer.at("ids").as_array().size());
  for (const auto& token : tokens) {
    const auto& top = token.at("top").as_array();
    ASSERT_EQ(top.size(), 3U);
    EXPECT_EQ(top[0].at("id"), token.at("id"));
    EXPECT_EQ(top[0].at("logprob"), token.at("logprob"));
    EXPECT_GE(top[0].at("logprob").to_number<double>(), top[1].at("logprob").to_number<double>());
    EXPECT_LE(top[0].at("logprob").to_number<double>(), 0.0);
  }
}

TEST(ProgramTest, AStopTextEndsTheAnswerBeforeIt) {
  const auto answer = run_json(greedy({"--stop", "nowhere", "--stop", " = "}));
  EXPECT_EQ(answer.at("text").as_string(), "12 + 30");
  EXPECT_EQ(answer.at("finish_reason").as_string(), "stop");
  EXPECT_EQ(answer.at("stop_string").as_string(), " = ");
}

TEST(ProgramTest, MaxTokensCutsTheAnswer) {
  const auto answer = run_json(greedy({"--max-tokens", "3"}));
  EXPECT_EQ(answer.at("finish_reason").as_string(), "length");
  EXPECT_EQ(answer.at("usage").at("completion_tokens").as_int64(), 3);
}

TEST(ProgramTest, TheSeedDecidesTheText) {
  const auto sample = [](const char* seed) {
    return run_program({"run", "-m", kTiny, "-p", "Use freedom in a sentence.", "--temperature",
                        "1.5", "--max-tokens", "24", "--seed", seed})
        .out;
  };
  EXPECT_EQ(sample("7"), sample("7"));
  EXPECT_NE(sample("7"), sample("8"));
}

TEST(ProgramTest, ABiasMovesTheChoice) {
  const auto plain = run_json(greedy({"--max-tokens", "1"}));
  const auto first = std::to_string(plain.at("ids").as_array().at(0).as_int64());
  const auto moved = run_json(greedy({"--max-tokens", "1", "--logit-bias", first + "=-1000"}));
  EXPECT_NE(moved.at("ids"), plain.at("ids"));
}

TEST(ProgramTest, ASystemMessageIsPartOfThePrompt) {
  const auto prompt_tokens = [](const std::vector<std::string>& more) {
    return run_json(greedy(more)).at("usage").at("prompt_tokens").as_int64();
  };
  EXPECT_GT(prompt_tokens({"--system", "Be brief."}), prompt_tokens({}));
}

TEST(ProgramTest, RawTextHasNoTemplateAroundIt) {
  const auto answer = run_json({"run", "-m", kTiny, "--raw", "-p", "<|im_start|>", "--temperature",
                                "0", "--max-tokens", "1"});
  EXPECT_EQ(answer.at("usage").at("prompt_tokens").as_int64(), 1);
}

TEST(ProgramTest, StatsGoToStandardError) {
  const Outcome outcome = run_program(greedy({"--stats"}));
  EXPECT_EQ(outcome.out, std::string(kAnswer) + "\n");
  EXPECT_THAT(outcome.err, HasSubstr("tokens/s"));
}

TEST(ProgramTest, DraftsAreCountedAndChangeNothing) {
  const Outcome outcome = run_program(greedy({"--draft", "2", "--stats"}));
  EXPECT_EQ(outcome.out, std::string(kAnswer) + "\n");
  EXPECT_THAT(outcome.err, HasSubstr("accepted by place"));
  const auto drafted = run_json(greedy({"--draft", "2"}));
  EXPECT_EQ(drafted.at("usage").at("drafts").at("proposed").as_array().size(), 2U);
  const auto plain = run_json(greedy({"--draft", "0"}));
  EXPECT_FALSE(plain.at("usage").as_object().contains("drafts"));
  EXPECT_EQ(drafted.at("ids"), plain.at("ids"));
}

TEST(ProgramTest, FailuresAreOneMessageAndStatusOne) {
  const struct {
    std::vector<std::string> words;
    const char* message;
  } cases[] = {
      {{"run", "-m", "no/such/model", "-p", "x"}, "no/such/model"},
      {{"info", "no/such/model"}, "no/such/model"},
      {{"verify", kTiny, "--reference", "no.json"}, "no.json"},
      {{"verify", kTiny, "--reference", "no.txt"}, "no.txt"},
      {{"eval", kTiny, "--text", "no.txt"}, "no.txt"},
      {greedy({"--device", "abacus"}), "abacus"},
      {greedy({"--ctx", "4"}), "4"},
      {greedy({"--top-p", "2"}), "top_p"},
      {greedy({"--draft", "99"}), "draft"},
      {greedy({"--stop", ""}), "stop"},
      {greedy({"--logit-bias", "999999=1"}), "999999"},
      {greedy({"--load-state", "no.state"}), "no.state"},
      {greedy({"--save-state", "no/such/folder/state"}), "no/such/folder"},
  };
  for (const auto& [words, message] : cases) {
    const Outcome outcome = run_program(words);
    EXPECT_EQ(outcome.status, 1) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_TRUE(outcome.err.starts_with("tessera: ")) << outcome.err;
  }
}

TEST(ProgramTest, LostOutputIsAnError) {
  const std::vector<std::vector<std::string>> commands = {
      greedy(),
      greedy({"--json"}),
      greedy({"--ignore-eos", "--max-tokens", "0"}),
      {"info", kTiny},
      {"info", kTiny, "--json"},
      {"verify", kNano},
      {"eval", kTiny, "--text", "CONTRIBUTING.md"},
      {"--help"},
      {"run", "--help"},
      {"--version"},
  };
  for (const auto& words : commands) {
    const Outcome outcome = run_program_into("/dev/full", words);
    EXPECT_EQ(outcome.status, 1) << words.front();
    EXPECT_THAT(outcome.err, HasSubstr("tessera: cannot write: standard output")) << words.front();
  }
}

TEST(ProgramTest, TheDefaultLengthFitsTheContext) {
  const auto answer = run_json(greedy({"--ctx", "64", "--ignore-eos"}));
  EXPECT_EQ(answer.at("finish_reason").as_string(), "length");
  EXPECT_EQ(answer.at("usage").at("prompt_tokens").as_int64() +
                answer.at("usage").at("completion_tokens").as_int64(),
            64);
  const Outcome named = run_program(greedy({"--ctx", "64", "--max-tokens", "64"}));
  EXPECT_EQ(named.status, 1);
  EXPECT_THAT(named.err, HasSubstr("lower --max-tokens, or raise --ctx"));
}

TEST(ProgramTest, AModelFolderIsNamedForWhatItIs) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"/nonexistent", "no such model folder: /nonexistent"},
      {"LICENSE", "not a folder: LICENSE"},
      {"models/tiny/config.json", "not a folder: models/tiny/config.json"},
      {kNano, "the model has no tokenizer: models/nano"},
  };
  for (const auto& [model, message] : cases) {
    const Outcome outcome = run_program({"run", "-m", model, "-p", kQuestion});
    EXPECT_EQ(outcome.status, 1) << model;
    EXPECT_THAT(outcome.err, HasSubstr("tessera: " + message));
  }
  EXPECT_EQ(run_program({"info", kNano}).status, 0);
}

TEST(ProgramTest, UsageErrorsSayWhatWasExpected) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"bogus"}, "unknown command bogus"},
      {{"run", "--seed", "-1"}, "--seed: expected a whole number from 0 on, found -1"},
      {{"run", "--seed", "18446744073709551616"}, "up to 18446744073709551615"},
      {{"run", "--max-tokens", "-1"}, "--max-tokens: expected a whole number from 0 on, found -1"},
      {{"run", "--threads", "-1"}, "--threads: expected a whole number from 0 on, found -1"},
      {{"run", "--json", "--logprobs", "-1"}, "--logprobs: expected a whole number from 0 on"},
      {{"bench", "--contexts", "abc"}, "--contexts: expected a whole number from 1 on, found abc"},
      {{"run", "-m", ""}, "expected a folder"},
      {{"run", "--stop", "\xff"}, "--stop: expected UTF-8"},
  };
  for (const auto& [words, message] : cases) {
    const Outcome outcome = run_program(words);
    EXPECT_EQ(outcome.status, 2) << message;
    EXPECT_TRUE(outcome.err.starts_with("tessera: ")) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST(ProgramTest, WrongUseIsStatusTwo) {
  EXPECT_EQ(run_program({"run", "--frobnicate"}).status, 2);
  EXPECT_EQ(run_program({}).status, 2);
  EXPECT_EQ(run_program({"--help"}).status, 0);
}

TEST(ProgramTest, InfoCountsTheWeights) {
  const auto info = run_json({"info", kTiny});
  EXPECT_EQ(info.at("vocab_size").as_int64(), 8192);
  EXPECT_EQ(info.at("layer_kinds").as_array().size(), 8U);
  EXPECT_GT(info.at("max_draft").as_int64(), 0);
  uint64_t bytes = 0;
  for (const auto& part : info.at("weights").as_array())
    bytes += part.at("bytes").to_number<uint64_t>();
  uint64_t on_disk = 0;
  for (const auto& file : std::filesystem::directory_iterator(kTiny))
    if (file.path().extension() == ".safetensors") on_disk += file.file_size();
  EXPECT_GT(bytes, on_disk / 2);
  EXPECT_LE(bytes, on_disk);
  for (const auto& part : info.at("state_per_token").as_array())
    EXPECT_FALSE(part.as_object().contains("parameters"));
  EXPECT_FALSE(info.at("kernels").as_array().empty());
  const Outcome text = run_program({"info", kTiny});
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.out, HasSubstr("8192"));
}

TEST(ProgramTest, VerifyPassesOnTheGoldenModel) {
  const Outcome outcome = run_program({"verify", kNano});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("PASSED"));
  const auto report = run_json({"verify", kNano});
  EXPECT_TRUE(report.at("passed").as_bool());
  EXPECT_FALSE(report.at("rows").as_array().empty());
}

TEST(ProgramTest, EvalScoresText) {
  const auto score = run_json({"eval", kTiny, "--text", "LICENSE", "--ctx", "1024"});
  EXPECT_GT(score.at("tokens").as_int64(), 1000);
  EXPECT_GT(score.at("perplexity").to_number<double>(), 1.0);
}

TEST(ProgramTest, BenchReportsEveryContext) {
  const auto report = run_json({"bench", kTiny, "--contexts", "64,128", "--decode-tokens", "4"});
  ASSERT_EQ(report.at("frontiers").as_array().size(), 2U);
  for (const auto& row : report.at("frontiers").as_array())
    EXPECT_GT(row.at("decode_tokens_per_second").to_number<double>(), 0.0);
  EXPECT_TRUE(report.at("drafting").as_array().empty());
}

TEST(ProgramTest, BenchMeasuresDraftsAgainstPlainDecoding) {
  const auto report = run_json({"bench", kTiny, "--contexts", "64", "--decode-tokens", "4",
                                "--draft", "2", "--batch", "1,2", "--draft-tokens", "24"});
  const auto& cases = report.at("drafting").as_array();
  ASSERT_EQ(cases.size(), 6U);  // three texts, two batches
  for (const auto& each : cases) {
    const auto& text = each.at("text").as_string();
    EXPECT_TRUE(each.at("same_text").as_bool()) << text;
    const auto& rows = each.at("rows").as_array();
    ASSERT_EQ(rows.size(), 2U);
    const auto number = [&](size_t row, const char* key) {
      return rows[row].at(key).to_number<double>();
    };
    for (size_t row = 0; row < rows.size(); ++row) {
      EXPECT_GT(number(row, "tokens_per_second"), 0.0);
      EXPECT_GT(number(row, "verify_share"), 0.0);
      EXPECT_LE(number(row, "verify_share") + number(row, "draft_share"), 1.0);
      EXPECT_GE(number(row, "commit_share"), 0.0);
    }
    // Two drafts more are more than twice the rows, but share the weights.
    EXPECT_GT(number(1, "bytes_per_round"), number(0, "bytes_per_round")) << text;
    EXPECT_LT(number(1, "bytes_per_round"), 3.0 * number(0, "bytes_per_round")) << text;
    EXPECT_EQ(number(0, "draft_share"), 0.0);
    EXPECT_GT(number(1, "draft_share"), 0.0);
    EXPECT_GT(number(1, "times_goal"), 0.0);
    EXPECT_EQ(rows[1].at("drafts").at("proposed").as_array().size(), 2U);
  }
}

TEST(ProgramTest, BenchSweepsAllDepths) {
  const auto report = run_json({"bench", kTiny, "--contexts", "16", "--decode-tokens", "1",
                                "--draft", "sweep", "--draft-tokens", "8"});
  for (const auto& each : report.at("drafting").as_array()) {
    const auto& rows = each.at("rows").as_array();
    ASSERT_EQ(rows.size(), 7U);
    for (size_t depth = 0; depth + 1 < rows.size(); ++depth)
      EXPECT_EQ(rows[depth].at("depth").as_int64(), static_cast<int64_t>(depth));
    EXPECT_TRUE(rows.back().at("depth").is_null());
    EXPECT_GT(each.at("adaptive_ratio").to_number<double>(), 0.0);
    EXPECT_TRUE(each.at("same_text").as_bool());
  }
}

TEST(ProgramTest, AShortlistOfATextDraftsTheSameAnswer) {
  const std::string list = testing::TempDir() + "tessera_program.shortlist";
  const Outcome made =
      run_program({"shortlist", "-m", kTiny, "--size", "200", "--corpus", "README.md", "-o", list});
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("of 8192 tokens"));
  const Outcome answer =
      run_program(greedy({"--draft-shortlist", list, "--draft", "3", "--stats"}));
  EXPECT_EQ(answer.out, std::string(kAnswer) + "\n");
  EXPECT_THAT(answer.err, HasSubstr("drafts:"));
  const Outcome other =
      run_program({"run", "-m", kTiny, "-p", kQuestion, "--draft-shortlist", "README.md"});
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.err, HasSubstr("not a shortlist"));
  const Outcome empty =
      run_program({"shortlist", "-m", kTiny, "--corpus", "/dev/null", "-o", list});
  EXPECT_EQ(empty.status, 1);
  EXPECT_THAT(empty.err, HasSubstr("no text to count"));
  std::filesystem::remove(list);
}

}  // namespace
}  // namespace tessera::cli
