// SPDX-License-Identifier: Apache-2.0
// Drafts in a pool that is nearly full: they take no page that a text needs.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/engine_harness.h"

namespace tessera::test {
namespace {

constexpr int kMaxDraft = 5;
constexpr int kPageTokens = 64;

/// Four pages, one of them held by a kept state.
class DraftPages : public testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.model_dir = "models/nano";
    options.max_context = 2 * kPageTokens;
    options.max_sequences = 2;
    auto engine = Engine::load(options);
    ASSERT_TRUE(engine) << engine.error().message();
    engine_ = std::move(*engine);
    Request first = make(kPageTokens - 3, 9, 4, kMaxDraft);
    first.keep_state = true;
    state_ = run(*engine_, first).last.state;
    ASSERT_NE(state_, nullptr);
    ASSERT_EQ(Engine::state_tokens(state_).size(), static_cast<size_t>(kPageTokens));
  }

  static Request make(int prompt_tokens, int salt, int tokens, int draft) {
    std::vector<int32_t> prompt = prompt_of(prompt_tokens, salt);
    for (int32_t& id : prompt) id %= 480;
    Request request = request_of(std::move(prompt), 1.0F, static_cast<uint64_t>(salt), tokens);
    request.draft = draft;
    return request;
  }

  std::unique_ptr<Engine> engine_;
  StateHandle state_;
};

/// A text that ends before its second page drafts into it, while its neighbour needs that page.
TEST_F(DraftPages, ADraftGivesItsPageToATextThatNeedsIt) {
  constexpr int kLong = 60, kPrompt = 50;
  int tried = 0;
  for (int salt = 1; salt <= 12; ++salt) {
    const Request plain = make(kPrompt, salt, kPageTokens, 0);
    const Output whole = run(*engine_, plain);
    // A stop token that ends the text on its first page.
    const auto stop = std::find_if(
        whole.tokens.begin() + 9, whole.tokens.begin() + 13,
        [&](const int32_t& id) { return std::find(whole.tokens.data(), &id, id) == &id; });
    if (stop == whole.tokens.begin() + 13) continue;
    ++tried;
    for (const int ahead : {0, 2, 4}) {
      Request short_text = make(kPrompt, salt, kPageTokens, kMaxDraft);
      short_text.stop_ids = {*stop};
      const Request long_text = make(kPrompt + ahead, 50 + salt, kLong, salt % (kMaxDraft + 1));
      Generation ending = std::move(*engine_->submit(short_text));
      Generation going_on = std::move(*engine_->submit(long_text));
      const Output first = drain(ending);
      EXPECT_EQ(first.last.reason, FinishReason::kStop);
      EXPECT_EQ(first.tokens, std::vector<int32_t>(whole.tokens.begin(), stop + 1));
      const Output second = drain(going_on);
      EXPECT_EQ(second.last.reason, FinishReason::kLength)
          << (second.last.error ? second.last.error->message() : "");
      EXPECT_EQ(second.tokens, run(*engine_, make(kPrompt + ahead, 50 + salt, kLong, 0)).tokens);
    }
  }
  EXPECT_GT(tried, 3);
}

/// Two texts that need more pages than there are: one ends with the error of plain decoding, the
/// other is whole.
TEST_F(DraftPages, AnExhaustedPoolEndsOneTextAndNoOther) {
  constexpr int kPrompt = 60, kTokens = 20;
  const Request more = make(kPageTokens + 1, 3, 1, 0);
  Request holder = more;
  holder.keep_state = true;
  const StateHandle second = run(*engine_, holder).last.state;  // two pages: one is left
  ASSERT_NE(second, nullptr);
  for (const int draft : {0, 1, 3, kMaxDraft, kDraftAuto}) {
    const Request request = make(kPrompt, 1, kTokens, draft);
    const Output starved = run(*engine_, request);
    ASSERT_EQ(starved.last.reason, FinishReason::kError) << draft;
    EXPECT_EQ(starved.last.error->code, Errc::kOutOfMemory);
    // Everything that fits the page was delivered.
    EXPECT_EQ(starved.tokens.size(), static_cast<size_t>(kPageTokens - kPrompt + 1)) << draft;
  }
}

/// A state that ends with its page shares it: without a page for a copy the text goes on without
/// drafts.
TEST_F(DraftPages, AResumedStateWithoutAPageForItsLastDraftRowGoesOn) {
  Request filler = make(kPageTokens + 10, 3, 1, 0);
  filler.keep_state = true;
  const StateHandle held = run(*engine_, filler).last.state;  // two pages: one is left
  ASSERT_NE(held, nullptr);
  Request request = make(1, 1, 10, 0);
  request.prompt = Engine::state_tokens(state_);
  request.prompt.push_back(7);
  request.resume_from = state_;
  const Output plain = run(*engine_, request);
  ASSERT_EQ(plain.tokens.size(), 10U);
  request.draft = kMaxDraft;
  EXPECT_EQ(run(*engine_, request).tokens, plain.tokens);
}

}  // namespace
}  // namespace tessera::test
