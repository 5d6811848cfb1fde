// SPDX-License-Identifier: Apache-2.0
// One request from submission to the last event.
#include <tessera/text_stream.h>
#include <algorithm>
#include <utility>

#include "cli/session.h"
#include "cli/terminal.h"

namespace tessera::cli {
namespace {

/// Collects the events of one generation into an answer.
class Collector {
 public:
  Collector(TextStream stream, std::vector<int32_t> hidden_ids, bool keep_events,
            const TextSink& on_text)
      : stream_(std::move(stream)),
        hidden_ids_(std::move(hidden_ids)),
        keep_events_(keep_events),
        on_text_(on_text) {}

  /// True while more tokens are wanted. The engine learns of a stop text a round late; what it
  /// made in between is dropped.
  bool take_token(Event event) {
    if (stream_.stop_index() >= 0 || !shown_) return false;
    answer_.ids.push_back(event.token);
    if (std::ranges::find(hidden_ids_, event.token) == hidden_ids_.end())
      show(stream_.push(event.token).text);
    if (keep_events_) answer_.tokens.push_back(std::move(event));
    return stream_.stop_index() < 0 && shown_;
  }

  Answer finish(Event event, const std::vector<std::string>& stops) {
    show(stream_.flush().text);
    const int stop = stream_.stop_index();
    if (stop >= 0) answer_.stop_string = stops[static_cast<size_t>(stop)];
    answer_.reason = stop >= 0 ? FinishReason::kStop : event.reason;
    answer_.usage = event.usage;
    answer_.state = std::move(event.state);
    return std::move(answer_);
  }

 private:
  void show(const std::string& piece) {
    answer_.text += piece;
    if (!piece.empty() && on_text_ && shown_) shown_ = on_text_(piece);
  }

  TextStream stream_;
  std::vector<int32_t> hidden_ids_;
  bool keep_events_;
  const TextSink& on_text_;
  Answer answer_{};
  bool shown_ = true;  // every piece so far was taken
};

}  // namespace

Result<Answer> generate(Session& session, Request request, const std::vector<std::string>& stops,
                        const TextSink& on_text) {
  // Tags of thinking and tool calls are special tokens too: only the end of the turn is hidden.
  auto stream = TextStream::create(session.tokenizer, stops, false);
  if (!stream) return fail(stream.error());
  std::vector<int32_t> hidden_ids;
  if (!request.ignore_eos) hidden_ids = session.engine->info().defaults.eos_token_ids;
  Collector collector(std::move(*stream), std::move(hidden_ids), request.top_logprobs >= 0,
                      on_text);
  Progress progress("reading the prompt");
  const auto prompt_tokens = static_cast<double>(request.prompt.size());
  auto generation = session.engine->submit(std::move(request));
  if (!generation) return fail(generation.error());
  while (true) {
    Event event = generation->next();
    if (event.kind == Event::Kind::kFinished) {
      progress.clear();
      if (event.reason == FinishReason::kError) return fail(event.error.value_or(Error{}));
      return collector.finish(std::move(event), stops);
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
