// SPDX-License-Identifier: Apache-2.0
// `tessera run`: one answer, as text or JSON. Without a prompt it hands over to the chat.
#include <tessera/state_target.h>
#include <unistd.h>
#include <cstdio>

#include "cli/answer_json.h"
#include "cli/chat_loop.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/input.h"
#include "cli/terminal.h"

namespace tessera::cli {
namespace {

Result<std::string> prompt_text(const RunArgs& args) {
  if (args.prompt) return *args.prompt;
  auto text = read_input("-");
  if (text && text->empty() && !args.load_state.empty() && !args.raw) {
    return fail({.code = Errc::kInvalidArgument,
                 .what = "nothing to say",
                 .where = "standard input",
                 .found = "no text",
                 .hint = "give the next turn with -p TEXT"});
  }
  return text;
}

Result<Answer> answer_prompt(const RunArgs& args, Session& session, Conversation& conversation) {
  const auto prompt = prompt_text(args);
  if (!prompt) return fail(prompt.error());
  const InterruptScope interrupts;
  auto answer = conversation.ask(*prompt, args.json ? nullptr : print_text);
  if (!answer) return answer;
  if (args.json) {
    print_line(answer_json(session, args, *answer));
  } else {
    print_line("");
  }
  if (args.stats) print_stats(answer->usage);
  return answer;
}

int exit_status(const Answer& answer) {
  return answer.reason == FinishReason::kCancelled ? kExitInterrupted : kExitOk;
}

}  // namespace

int run_command(const RunArgs& args) {
  if (!args.save_state.empty()) {
    if (const auto target = state_target(args.save_state); !target)
      return report_error(target.error());
  }
  auto session = open_session(args.engine, !args.raw);
  if (!session) return report_error(session.error());
  Conversation conversation(*session, args);
  if (!args.load_state.empty()) {
    if (auto loaded = conversation.load_state(args.load_state); !loaded)
      return report_error(loaded.error());
  }
  int status = kExitOk;
  if (!args.prompt && isatty(STDIN_FILENO) == 1) {
    chat_loop(args, *session, conversation);
  } else {
    const auto answer = answer_prompt(args, *session, conversation);
    if (!answer) return report_error(answer.error());
    status = exit_status(*answer);
  }
  if (!flush_output()) return kExitError;
  if (!args.save_state.empty()) {
    if (auto saved = conversation.save_state(args.save_state); !saved)
      return report_error(saved.error());
  }
  return status;
}

}  // namespace tessera::cli
