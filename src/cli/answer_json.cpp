// SPDX-License-Identifier: Apache-2.0
// The object that `tessera run --json` prints.
#include "cli/answer_json.h"

#include <tessera/json_writer.h>
#include <span>

namespace tessera::cli {
namespace {

void write_token(JsonWriter& json, const Tokenizer& tokenizer, int32_t id, float logprob) {
  json.key("id").integer(id);
  json.key("text").string(tokenizer.decode(std::span(&id, 1), false));
  json.key("logprob").real(static_cast<double>(logprob));
}

void write_logprobs(JsonWriter& json, const Tokenizer& tokenizer, const Answer& answer) {
  json.key("logprobs").begin_array();
  for (const Event& event : answer.tokens) {
    json.begin_object();
    write_token(json, tokenizer, event.token, event.logprob);
    json.key("top").begin_array();
    for (const TokenLogprob& candidate : event.top) {
      json.begin_object();
      write_token(json, tokenizer, candidate.token, candidate.logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

void write_counts(JsonWriter& json, const char* name, const std::vector<int>& counts) {
  json.key(name).begin_array();
  for (const int count : counts) json.integer(count);
  json.end_array();
}

void write_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage").begin_object();
  json.key("prompt_tokens").integer(usage.prompt_tokens);
  json.key("cached_tokens").integer(usage.cached_tokens);
  json.key("completion_tokens").integer(usage.completion_tokens);
  json.key("prefill_seconds").real(usage.prefill_seconds);
  json.key("decode_seconds").real(usage.decode_seconds);
  if (usage.drafts.rounds > 0) write_drafts(json, usage.drafts);
  json.end_object();
}

}  // namespace

void write_drafts(JsonWriter& json, const DraftUsage& drafts) {
  json.key("drafts").begin_object();
  json.key("rounds").integer(drafts.rounds);
  write_counts(json, "proposed", drafts.proposed);
  write_counts(json, "accepted", drafts.accepted);
  json.end_object();
}

std::string answer_json(const Session& session, const RunArgs& args, const Answer& answer) {
  std::string text;
  JsonWriter json(text);
  json.begin_object();
  json.key("model").string(session.engine->info().name);
  json.key("text").string(answer.text);
  json.key("ids").begin_array();
  for (const int32_t id : answer.ids) json.integer(id);
  json.end_array();
  json.key("finish_reason").string(reason_name(answer.reason));
  json.key("stop_string");
  if (answer.stop_string.empty()) {
    json.null();
  } else {
    json.string(answer.stop_string);
  }
  json.key("seed").unsigned_integer(args.sampling.seed);
  write_usage(json, answer.usage);
  if (args.logprobs) write_logprobs(json, session.tokenizer, answer);
  json.end_object();
  return text;
}

}  // namespace tessera::cli
