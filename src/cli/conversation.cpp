// SPDX-License-Identifier: Apache-2.0
// Builds the prompt of each turn. What was generated is never decoded and encoded again: its ids
// stay, so the saved state always fits.
#include "cli/conversation.h"

#include <algorithm>
#include <utility>

namespace tessera::cli {
namespace {

// Stands for the last answer in a rendered prompt; what the template puts after it opens a turn.
constexpr std::string_view kAnswerMark = "TESSERA-LAST-ANSWER";

ChatMessage message(const char* role, std::string content) {
  return {.role = role, .content = std::move(content)};
}

ChatOptions template_options(const RunArgs& args) {
  ChatOptions options;
  if (args.no_think) options.variables["enable_thinking"] = "false";
  return options;
}

/// The engine does not know how its limits are set here.
Error in_terms_of_options(Error error) {
  if (error.code == Errc::kContextLimit)
    error.hint = "shorten the prompt, lower --max-tokens, or raise --ctx";
  return error;
}

}  // namespace

Result<std::string> Conversation::opening(const std::string& text) const {
  std::vector<ChatMessage> messages;
  const Tokenizer& tokenizer = session_.tokenizer;
  if (!args_.system.empty()) messages.push_back(message("system", tokenizer.shield(args_.system)));
  messages.push_back(message("user", tokenizer.shield(text)));
  return session_.chat->render(messages, template_options(args_));
}

Result<std::string> Conversation::continuation(const std::string& text) const {
  auto rendered = session_.chat->render(
      {message("user", "question"), message("assistant", std::string(kAnswerMark)),
       message("user", session_.tokenizer.shield(text))},
      template_options(args_));
  if (!rendered) return rendered;
  const size_t mark = rendered->find(kAnswerMark);
  if (mark == std::string::npos) {
    return fail({.code = Errc::kUnsupported,
                 .what = "the chat template drops the last answer",
                 .where = "chat_template.jinja",
                 .hint = "ask one question per run, or use --raw"});
  }
  return rendered->substr(mark + kAnswerMark.size());
}

Result<std::vector<int32_t>> Conversation::extend(const std::string& text) const {
  std::vector<int32_t> prompt = tokens_;
  Result<std::string> added = text;
  if (!args_.raw) added = tokens_.empty() ? opening(text) : continuation(text);
  if (!added) return fail(added.error());
  const std::vector<int32_t> ids =
      args_.raw ? session_.tokenizer.encode(*added) : session_.tokenizer.encode_rendered(*added);
  // The answer's own end-of-turn id and the one that the template writes are the same token.
  const bool ended = !args_.raw && !prompt.empty() && !ids.empty() && prompt.back() == ids.front();
  prompt.insert(prompt.end(), ids.begin() + (ended ? 1 : 0), ids.end());
  return prompt;
}

int Conversation::new_tokens(size_t prompt_tokens) const {
  if (args_.max_tokens) return *args_.max_tokens;
  const int room = session_.engine->info().max_context - static_cast<int>(prompt_tokens);
  return std::clamp(room, 1, kDefaultMaxTokens);  // without room the engine says so
}

bool Conversation::can_resume(const std::vector<int32_t>& prompt) const {
  if (!state_) return false;
  const std::vector<int32_t>& absorbed = Engine::state_tokens(state_);
  return absorbed.size() < prompt.size() &&
         std::equal(absorbed.begin(), absorbed.end(), prompt.begin());
}

Result<Answer> Conversation::ask(const std::string& text, const TextSink& on_text) {
  auto prompt = extend(text);
  if (!prompt) return fail(prompt.error());
  Request request;
  request.prompt = *prompt;
  request.sampling = merge_sampling(session_.engine->info().defaults.sampling, args_.sampling);
  request.max_tokens = new_tokens(prompt->size());
  request.ignore_eos = args_.ignore_eos;
  request.draft = args_.draft;
  request.top_logprobs = args_.logprobs.value_or(-1);
  request.keep_state = true;
  if (can_resume(*prompt)) request.resume_from = state_;
  auto answer = generate(session_, std::move(request), args_.stop, on_text);
  if (!answer) return fail(in_terms_of_options(answer.error()));
  tokens_ = std::move(*prompt);
  tokens_.insert(tokens_.end(), answer->ids.begin(), answer->ids.end());
  state_ = answer->state;
  return answer;
}

Result<void> Conversation::load_state(const std::string& path) {
  auto state = session_.engine->load_state(path);
  if (!state) return fail(state.error());
  state_ = std::move(*state);
  tokens_ = Engine::state_tokens(state_);
  return {};
}

// The engine has drawn the last token but has not read it: one more step makes the state whole.
Result<void> Conversation::absorb_all() {
  if (tokens_.empty() || (state_ && Engine::state_tokens(state_) == tokens_)) return {};
  Request request;
  request.prompt = tokens_;
  request.max_tokens = 1;
  request.draft = args_.draft;
  request.keep_state = true;
  if (can_resume(tokens_)) request.resume_from = state_;
  auto answer = generate(session_, std::move(request), {}, nullptr);
  // A full context has no room for the step: the state then ends before the last token.
  if (!answer && answer.error().code == Errc::kContextLimit && state_) return {};
  if (!answer) return fail(answer.error());
  state_ = answer->state;
  return {};
}

Result<void> Conversation::save_state(const std::string& path) {
  if (auto absorbed = absorb_all(); !absorbed) return absorbed;
  if (!state_) {
    return fail({.code = Errc::kInvalidArgument, .what = "nothing was said", .where = path});
  }
  return session_.engine->save_state(state_, path);
}

void Conversation::reset() {
  tokens_.clear();
  state_.reset();
}

}  // namespace tessera::cli
