// SPDX-License-Identifier: Apache-2.0
// Requests to an engine loop: an opening that reads the text, then continuations of its state.
#include "eval/bench_draft.h"

#include <tessera/tokenizer.h>
#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/philox.h"
#include "runtime/engine_loop.h"

namespace tessera {
namespace {

constexpr int kDraftTokens = 256;  // of each continuation, where the context has room
constexpr int kTurns = 3;          // of each kind
constexpr uint64_t kTextSeed = 7;
constexpr int kCounted = 60;  // numbers of the text that is easy to go on with

/// A text that is hard to miss and one that is not.
constexpr const char* kProse =
    "The lighthouse had been dark for eleven years when the letter came. Nobody on the island "
    "remembered who owned the rock it stood on, and the harbour master, a patient man with a "
    "bad knee, spent most of the autumn reading old deeds in the cellar of the town hall. What "
    "he found there was not an owner but a debt: someone had borrowed the light, long ago, and "
    "had never given it back. He walked home along the shore that evening and";

std::string counting() {
  std::string text;
  for (int number = 1; number <= kCounted; ++number) text += std::to_string(number) + ", ";
  return text;
}

struct Text {
  std::string name;
  std::vector<int32_t> ids;
};

Result<std::vector<Text>> make_texts(const LoadedModel& model, const BenchOptions& options,
                                     const std::vector<int>& contexts) {
  std::vector<Text> texts;
  const std::string& dir = options.engine.model_dir;
  const bool trained = options.synthetic == SyntheticWeights::kNone;
  if (trained && std::filesystem::exists(dir + "/tokenizer.json")) {
    Result<Tokenizer> tokenizer = Tokenizer::load(dir);
    if (!tokenizer) return fail(tokenizer.error());
    texts.push_back({"counting", tokenizer->encode(counting())});
    texts.push_back({"prose", tokenizer->encode(kProse)});
  }
  for (const int context : contexts)
    texts.push_back(
        {"random", random_ids(static_cast<size_t>(context), model.config().vocab_size)});
  return texts;
}

Result<Event> run_request(EngineLoop& loop, Request request, std::vector<int32_t>& tokens) {
  tokens.clear();
  Generation generation(loop.enqueue(std::move(request)));
  for (;;) {
    Event event = generation.next();
    if (event.kind == Event::Kind::kToken) tokens.push_back(event.token);
    if (event.kind != Event::Kind::kFinished) continue;
    if (event.error) return fail(std::move(*event.error));
    return event;
  }
}

/// Usage of the turn in the middle, by time.
struct Measured {
  std::vector<Usage> turns{};

  const Usage& middle() {
    const auto at = turns.begin() + static_cast<ptrdiff_t>(turns.size() / 2);
    std::nth_element(turns.begin(), at, turns.end(), [](const Usage& a, const Usage& b) {
      return a.decode_seconds < b.decode_seconds;
    });
    return *at;
  }
};

/// The first token of a request is the prompt's.
double tokens_per_second(const Usage& usage) {
  return usage.decode_seconds > 0 ? (usage.completion_tokens - 1) / usage.decode_seconds : 0;
}

Result<DraftRow> measure(EngineLoop& loop, const Text& text, int draft) {
  const int room = loop.model().max_context() - static_cast<int>(text.ids.size());
  Request request{.prompt = text.ids, .max_tokens = 1, .ignore_eos = true, .keep_state = true};
  request.sampling.temperature = 0.0F;
  std::vector<int32_t> tokens;
  auto opening = run_request(loop, request, tokens);
  if (!opening) return fail(std::move(opening.error()));
  request.prompt.push_back(tokens.front());
  request.resume_from = opening->state;
  request.keep_state = false;
  request.max_tokens = std::min(kDraftTokens, room - 1);

  DraftRow row{.text = text.name, .context = static_cast<int>(text.ids.size()), .same_text = true};
  Measured plain, drafted;
  std::vector<int32_t> want;
  for (int turn = 0; turn <= kTurns; ++turn)  // the first one warms up
    for (const bool drafting : {false, true}) {
      request.draft = drafting ? draft : 0;
      auto last = run_request(loop, request, tokens);
      if (!last) return fail(std::move(last.error()));
      if (want.empty()) want = tokens;
      row.same_text = row.same_text && tokens == want;
      if (turn > 0) (drafting ? drafted : plain).turns.push_back(std::move(last->usage));
    }
  const Usage& usage = drafted.middle();
  row.tokens = usage.completion_tokens;
  row.plain_tokens_per_second = tokens_per_second(plain.middle());
  row.drafted_tokens_per_second = tokens_per_second(usage);
  row.drafts = usage.drafts;
  if (draft > 0 && row.drafts.rounds > 0)
    row.seconds_per_round = usage.decode_seconds / row.drafts.rounds;
  return row;
}

}  // namespace

std::vector<int32_t> random_ids(size_t count, int vocab) {
  std::vector<int32_t> ids(count);
  for (size_t at = 0; at < count; ++at)
    ids[at] = static_cast<int32_t>(philox_uniform(kTextSeed, at, DrawPurpose::kSample) * vocab);
  return ids;
}

Result<std::vector<DraftRow>> bench_drafts(std::unique_ptr<LoadedModel> model,
                                           const BenchOptions& options,
                                           const std::vector<int>& contexts) {
  const int draft = options.draft.value_or(kDraftAuto);
  if (!model->has_draft())
    return fail({.code = Errc::kUnsupported,
                 .what = "nothing to draft with",
                 .where = "bench",
                 .found = model->draft_note()});
  auto texts = make_texts(*model, options, contexts);
  if (!texts) return fail(std::move(texts.error()));
  EngineLoop loop(std::move(model));
  std::vector<DraftRow> rows;
  for (const Text& text : *texts) {
    if (options.on_progress)
      options.on_progress("drafts: " + text.name + ", " + std::to_string(text.ids.size()) +
                          " tokens");
    auto row = measure(loop, text, draft);
    if (!row) return fail(std::move(row.error()));
    rows.push_back(std::move(*row));
  }
  return rows;
}

}  // namespace tessera
