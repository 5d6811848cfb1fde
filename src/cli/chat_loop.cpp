// SPDX-License-Identifier: Apache-2.0
// A chat on a terminal: line editing, history, a few commands; Ctrl-C ends the answer only.
#include "cli/chat_loop.h"

#include <cstdio>

#include "cli/answer_json.h"
#include "cli/line_editor.h"
#include "cli/terminal.h"

namespace tessera::cli {
namespace {

constexpr const char* kHelp =
    "/reset   forget the conversation\n"
    "/help    this list\n"
    "/exit    leave (so does Ctrl-D)\n"
    "Ctrl-C stops an answer.\n";

void take_turn(const RunArgs& args, Session& session, Conversation& conversation,
               const std::string& line) {
  const auto answer = conversation.ask(line, args.json ? nullptr : print_text);
  if (!answer) {
    Error error = answer.error();
    if (error.code == Errc::kContextLimit) error.hint += "; /reset starts anew";
    report_error(error);
    return;
  }
  print_line(args.json ? answer_json(session, args, *answer) : "");
  if (answer->reason == FinishReason::kCancelled) std::fputs("[stopped]\n", stderr);
  if (answer->reason == FinishReason::kLength) {
    const int used = answer->usage.prompt_tokens + answer->usage.completion_tokens;
    const bool full = used >= session.engine->info().max_context;
    std::fputs(full ? "[the context is full: /reset starts anew]\n" : "[cut by --max-tokens]\n",
               stderr);
  }
  if (args.stats) print_stats(answer->usage);
}

}  // namespace

void chat_loop(const RunArgs& args, Session& session, Conversation& conversation) {
  const InterruptScope interrupts;
  LineEditor editor;
  std::fprintf(stderr, "%s - /help lists the commands\n", session.engine->info().name.c_str());
  while (auto line = editor.read("> ")) {
    if (*line == "/exit") return;
    if (line->empty()) continue;
    if (*line == "/help") {
      std::fputs(kHelp, stderr);
    } else if (*line == "/reset") {
      conversation.reset();
    } else if (line->front() == '/') {
      std::fprintf(stderr, "unknown command %s\n%s", line->c_str(), kHelp);
    } else {
      take_turn(args, session, conversation, *line);
      if (!flush_output()) return;
    }
  }
}

}  // namespace tessera::cli
