// SPDX-License-Identifier: Apache-2.0
// The chat on a terminal: turns, history keys, Ctrl-C, ways out.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cstdlib>

#include "cli/child.h"

namespace tessera::cli {
namespace {

constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";
constexpr const char* kUp = "\x1b[A";
constexpr const char* kQuestion = "What is 12 + 30?\n";
constexpr const char* kAnswer = "12 + 30 = 42.";

std::vector<std::string> chat(std::vector<std::string> more = {}) {
  std::vector<std::string> words{"run", "-m", "models/tiny", "--temperature", "0"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class ChatTest : public testing::Test {
 protected:
  /// A chroot without /dev/pts has none: the child would never show a prompt.
  void SetUp() override {
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0) GTEST_SKIP() << "no pseudo-terminal: is /dev/pts mounted?";
    const bool usable = grantpt(terminal) == 0 && unlockpt(terminal) == 0;
    const char* name = usable ? ptsname(terminal) : nullptr;
    const bool found = name != nullptr && access(name, R_OK | W_OK) == 0;
    close(terminal);
    if (!found) GTEST_SKIP() << "no pseudo-terminal: is /dev/pts mounted?";
  }
};

TEST_F(ChatTest, AnswersTurnAfterTurnAndLeavesOnCommand) {
  TerminalChild child(chat());
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type(kQuestion);
  ASSERT_TRUE(child.wait_for(kAnswer)) << child.output();
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type("What is 7 + 8?\n");
  ASSERT_TRUE(child.wait_for("7 + 8 = 15.")) << child.output();
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type("/exit\n");
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(ChatTest, TheSecondTurnReadsOnlyWhatIsNew) {
  TerminalChild child(chat({"--json"}));
  const auto cached_tokens = [&child](const std::string& question) {
    EXPECT_TRUE(child.wait_for_prompt()) << child.output();
    child.type(question);
    EXPECT_TRUE(child.wait_for("\"cached_tokens\":")) << child.output();
    EXPECT_TRUE(child.wait_for(",")) << child.output();
    const std::string key = "\"cached_tokens\":";
    return std::stoi(child.output().substr(child.output().rfind(key) + key.size()));
  };
  EXPECT_EQ(cached_tokens(kQuestion), 0);
  EXPECT_GT(cached_tokens("What is 7 + 8?\n"), 0);
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type("/reset\n");
  EXPECT_EQ(cached_tokens(kQuestion), 0);
}

TEST_F(ChatTest, CtrlCStopsTheAnswerAndNotTheChat) {
  TerminalChild child(chat({"--ignore-eos", "--max-tokens", "0"}));
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type(kQuestion);
  ASSERT_TRUE(child.wait_for(kAnswer)) << child.output();
  child.type(kCtrlC);
  ASSERT_TRUE(child.wait_for("[stopped]")) << child.output();
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type("/help\n");
  ASSERT_TRUE(child.wait_for("/reset")) << child.output();
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type(kCtrlD);
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(ChatTest, AFullContextNamesTheWayOut) {
  TerminalChild child(chat({"--ctx", "64", "--ignore-eos"}));
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type(kQuestion);
  ASSERT_TRUE(child.wait_for("[the context is full: /reset starts anew]")) << child.output();
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type(kQuestion);
  ASSERT_TRUE(child.wait_for("; /reset starts anew)")) << child.output();
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type("/reset\n");
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type(kQuestion);
  ASSERT_TRUE(child.wait_for(kAnswer)) << child.output();
}

TEST_F(ChatTest, CtrlCAtThePromptDropsTheLine) {
  TerminalChild child(chat());
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type("never to be sent");
  ASSERT_TRUE(child.wait_for("never to be sent")) << child.output();
  child.type(kCtrlC);
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type(kQuestion);
  ASSERT_TRUE(child.wait_for(kAnswer)) << child.output();
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type("/exit\n");
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(ChatTest, TheUpKeyBringsTheLastLineBack) {
  TerminalChild child(chat());
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type(kQuestion);
  ASSERT_TRUE(child.wait_for(kAnswer)) << child.output();
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type(std::string(kUp) + "\n");
  ASSERT_TRUE(child.wait_for("What is 12 + 30?")) << child.output();
  ASSERT_TRUE(child.wait_for(kAnswer)) << child.output();
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type(kCtrlD);
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(ChatTest, AnUnknownCommandIsNotSentToTheModel) {
  TerminalChild child(chat());
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type("/frobnicate\n");
  ASSERT_TRUE(child.wait_for("unknown command /frobnicate")) << child.output();
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type("/exit\n");
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(ChatTest, LettersOfAnyScriptCanBeTyped) {
  TerminalChild child(chat());
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type("/na\u00EFve\u4E16\u754C\n");
  ASSERT_TRUE(child.wait_for("unknown command /na\u00EFve\u4E16\u754C")) << child.output();
  ASSERT_TRUE(child.wait_for_prompt()) << child.output();
  child.type("/exit\n");
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace tessera::cli
