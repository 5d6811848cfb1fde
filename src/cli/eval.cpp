// SPDX-License-Identifier: Apache-2.0
// `tessera eval`: mean negative log-likelihood and perplexity of a text.
#include <tessera/json_writer.h>
#include <tessera/verify.h>
#include <cstdio>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/session.h"
#include "cli/terminal.h"

namespace tessera::cli {
namespace {

Result<TextScore> score(const EvalArgs& args) {
  const auto text = read_input(args.text);
  if (!text) return fail(text.error());
  const auto session = open_session(args.engine, false);
  if (!session) return fail(session.error());
  Progress progress("scoring");
  return score_text(*session->engine, session->tokenizer.encode(*text),
                    [&progress](double fraction) { progress.update(fraction); });
}

void print_as_json(const TextScore& score) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().key("tokens").integer(score.tokens);
  json.key("mean_nll").real(score.mean_nll).key("perplexity").real(score.perplexity);
  json.key("seconds").real(score.seconds).end_object();
  print_line(text);
}

}  // namespace

int eval_command(const EvalArgs& args) {
  const auto result = score(args);
  if (!result) return report_error(result.error());
  if (args.json) {
    print_as_json(*result);
  } else {
    std::printf("tokens      %d\nmean nll    %.6f\nperplexity  %.4f\nseconds     %.2f\n",
                result->tokens, result->mean_nll, result->perplexity, result->seconds);
  }
  return kExitOk;
}

}  // namespace tessera::cli
