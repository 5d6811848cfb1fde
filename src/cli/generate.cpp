// SPDX-License-Identifier: Apache-2.0
// One request from submission to the last event.
#include <tessera/text_stream.h>

#include "cli/session.h"
#include "cli/terminal.h"

namespace tessera::cli {
namespace {

/// Collects the events of one generation into an answer.
class Collector {
 public:
  Collector(const Session& session, const std::vector<std::string>& stops, bool keep_events,
            const std::function<void(std::string_view)>& on_text)
      : stream_(session.tokenizer, stops), keep_events_(keep_events), on_text_(on_text) {}

  /// True while more tokens are wanted.
  bool take_token(Event event) {
    if (stream_.stopped()) return false;
    answer_.ids.push_back(event.token);
    emit(stream_.push(event.token));
    if (keep_events_) answer_.tokens.push_back(std::move(event));
    return !stream_.stopped();
  }

  Answer finish(Event event) {
    emit(stream_.flush());
    answer_.stop_string = stream_.stop_string();
    answer_.reason = stream_.stopped() ? FinishReason::kStop : event.reason;
    answer_.usage = event.usage;
    answer_.state = std::move(event.state);
    return std::move(answer_);
  }

 private:
  void emit(const std::string& piece) {
    answer_.text += piece;
    if (!piece.empty() && on_text_) on_text_(piece);
  }

  TextStream stream_;
  bool keep_events_;
  const std::function<void(std::string_view)>& on_text_;
  Answer answer_{};
};

}  // namespace

Result<Answer> generate(Session& session, Request request, const std::vector<std::string>& stops,
                        const std::function<void(std::string_view)>& on_text) {
  Collector collector(session, stops, request.top_logprobs >= 0, on_text);
  Progress progress("reading the prompt");
  const auto prompt_tokens = static_cast<double>(request.prompt.size());
  auto generation = session.engine->submit(std::move(request));
  if (!generation) return fail(generation.error());
  while (true) {
    Event event = generation->next();
    if (event.kind == Event::Kind::kFinished) {
      progress.clear();
      if (event.reason == FinishReason::kError) return fail(event.error.value_or(Error{}));
      return collector.finish(std::move(event));
    }
    if (InterruptScope::take()) generation->cancel();
    if (event.kind == Event::Kind::kPrefill) {
      progress.update(event.prefilled / prompt_tokens);
      continue;
    }
    progress.clear();
    if (!collector.take_token(std::move(event))) generation->cancel();
  }
}

}  // namespace tessera::cli
