// SPDX-License-Identifier: Apache-2.0
// A conversation cut by --save-state and taken up by --load-state is the same conversation.
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

constexpr const char* kFirst = "What is 12 + 30?";
constexpr const char* kSecond = "What is 7 + 8?";
// What the template of models/tiny makes of the whole conversation.
constexpr const char* kWholeConversation =
    "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n12 + 30 = 42.<|im_end|>\n"
    "<|im_start|>user\nWhat is 7 + 8?<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n";

class StateTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = testing::TempDir() + "tessera_" + test->name() + ".state";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  static Outcome greedy(std::vector<std::string> words) {
    words.insert(words.begin(), {"run", "-m", "models/tiny", "--temperature", "0"});
    return run_program(words);
  }

  std::string path_;
};

TEST_F(StateTest, TheSecondRunReadsOnlyWhatIsNew) {
  const Outcome first = greedy({"-p", kFirst, "--save-state", path_});
  ASSERT_EQ(first.status, 0) << first.err;
  const Outcome second = greedy({"-p", kSecond, "--load-state", path_, "--json"});
  ASSERT_EQ(second.status, 0) << second.err;
  const Outcome whole = greedy({"--raw", "-p", kWholeConversation, "--json"});
  ASSERT_EQ(whole.status, 0) << whole.err;

  const auto resumed = boost::json::parse(second.out);
  const auto cold = boost::json::parse(whole.out);
  EXPECT_EQ(resumed.at("text").as_string(), "7 + 8 = 15.");
  EXPECT_EQ(resumed.at("ids"), cold.at("ids"));
  EXPECT_EQ(resumed.at("usage").at("prompt_tokens"), cold.at("usage").at("prompt_tokens"));
  EXPECT_EQ(cold.at("usage").at("cached_tokens").as_int64(), 0);
  EXPECT_GT(resumed.at("usage").at("cached_tokens").as_int64(),
            resumed.at("usage").at("prompt_tokens").as_int64() / 2);
}

TEST_F(StateTest, AnAnswerCutByLengthCanBeFollowed) {
  ASSERT_EQ(greedy({"-p", kFirst, "--max-tokens", "4", "--save-state", path_}).status, 0);
  const Outcome second = greedy({"-p", kSecond, "--load-state", path_});
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(second.out, "7 + 8 = 15.\n");
}

TEST_F(StateTest, RawTextGoesOnWhereItStopped) {
  const Outcome whole = greedy({"--raw", "-p", "CREATE TABLE", "--max-tokens", "12"});
  const Outcome head =
      greedy({"--raw", "-p", "CREATE TABLE", "--max-tokens", "6", "--save-state", path_});
  const Outcome tail =
      greedy({"--raw", "-p", "", "--load-state", path_, "--max-tokens", "6", "--json"});
  ASSERT_EQ(tail.status, 0) << tail.err;
  const auto continuation = boost::json::parse(tail.out);
  const std::string joined =
      head.out.substr(0, head.out.size() - 1) + continuation.at("text").as_string().c_str();
  EXPECT_EQ(joined + "\n", whole.out);
}

TEST_F(StateTest, NothingToSayIsNoTurn) {
  ASSERT_EQ(greedy({"-p", kFirst, "--save-state", path_}).status, 0);
  const Outcome outcome = greedy({"--load-state", path_});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("nothing to say"));
}

TEST_F(StateTest, AnotherFileIsNotOverwritten) {
  std::ofstream(path_) << "my thesis";
  const Outcome outcome = greedy({"-p", kFirst, "--save-state", path_});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.out, "") << "refused before the work";
  EXPECT_THAT(outcome.err, HasSubstr("will not overwrite: " + path_));
  EXPECT_EQ(std::filesystem::file_size(path_), 9U);
  for (const std::string& target : {std::string("/no/such/folder/state"), testing::TempDir()}) {
    const Outcome refused = greedy({"-p", kFirst, "--save-state", target});
    EXPECT_EQ(refused.status, 1) << target;
    EXPECT_EQ(refused.out, "") << target;
  }
}

TEST_F(StateTest, ALinkStaysALink) {
  const std::string link = path_ + ".link";
  std::filesystem::create_symlink(path_, link);
  EXPECT_EQ(greedy({"-p", kFirst, "--save-state", link}).status, 1) << "it leads nowhere yet";
  ASSERT_EQ(greedy({"-p", kFirst, "--save-state", path_}).status, 0);
  const Outcome outcome = greedy({"-p", kSecond, "--load-state", link, "--save-state", link});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  std::filesystem::remove(link);
}

TEST_F(StateTest, ADamagedFileIsRefused) {
  ASSERT_EQ(greedy({"-p", kFirst, "--save-state", path_}).status, 0);
  const auto size = std::filesystem::file_size(path_);
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(size / 2));
    const int old = file.get();
    file.seekp(static_cast<std::streamoff>(size / 2));
    file.put(static_cast<char>(old ^ 1));
  }
  const Outcome outcome = greedy({"-p", kSecond, "--load-state", path_});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr(path_));
}

TEST_F(StateTest, AnotherModelsStateIsRefused) {
  ASSERT_EQ(greedy({"-p", kFirst, "--save-state", path_}).status, 0);
  const Outcome outcome =
      greedy({"-p", kSecond, "--load-state", path_, "--kv-cache-dtype", "bf16"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr(path_));
}

}  // namespace
}  // namespace tessera::cli
