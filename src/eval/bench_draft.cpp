// SPDX-License-Identifier: Apache-2.0
// Requests to an engine loop: openings that read the texts, then continuations of their states.
#include "eval/bench_draft.h"

#include <algorithm>
#include <utility>

#include "eval/bench_texts.h"
#include "eval/round_costs.h"
#include "runtime/engine_loop.h"

namespace tessera {
namespace {

constexpr int kTurns = 3;           // of each depth, after one that warms up
constexpr int kCountedTokens = 64;  // of the turn whose bytes are counted
constexpr int kFewestTokens = 2;    // the first one of a request is the prompt's

Result<Event> finish(Generation& generation, std::vector<int32_t>& tokens) {
  for (;;) {
    Event event = generation.next();
    if (event.kind == Event::Kind::kToken) tokens.push_back(event.token);
    if (event.kind != Event::Kind::kFinished) continue;
    if (event.error) return fail(std::move(*event.error));
    return event;
  }
}

/// What the prompts of a text have become: requests that go on from their states.
using Openings = std::vector<Request>;

Result<Openings> open(EngineLoop& loop, const BenchText& text) {
  Openings openings;
  for (const std::vector<int32_t>& prompt : text.prompts) {
    Request request{.prompt = prompt,
                    .sampling = text.sampling,
                    .max_tokens = 1,
                    .ignore_eos = true,
                    .keep_state = true};
    request.sampling.seed += openings.size();
    std::vector<int32_t> tokens;
    Generation generation(loop.enqueue(request));
    auto opened = finish(generation, tokens);
    if (!opened) return fail(std::move(opened.error()));
    request.prompt.push_back(tokens.front());
    request.resume_from = opened->state;
    request.keep_state = false;
    openings.push_back(std::move(request));
  }
  return openings;
}

struct Turn {
  Usage usage{};                               // of the sequence that started last
  std::vector<std::vector<int32_t>> tokens{};  // by sequence

  /// Of all sequences, while all of them were there.
  double tokens_per_second() const {
    return usage.decode_seconds > 0 ? usage.rounds.tokens / usage.decode_seconds : 0;
  }
};

/// Sequences start one after the other, so the one that started last decodes beside all others;
/// they go on for as long as it does, and are cancelled then.
Result<Turn> run_turn(EngineLoop& loop, const Openings& openings, int batch, int depth,
                      int tokens) {
  const int deepest = depth == kDraftAuto ? loop.model().options().max_draft : depth;
  std::vector<Generation> generations;
  for (int sequence = 0; sequence < batch; ++sequence) {
    Request request = openings[static_cast<size_t>(sequence)];
    const auto room = loop.model().max_context() - static_cast<int>(request.prompt.size());
    const int longest = (tokens + batch) * (deepest + 1);
    request.max_tokens = sequence + 1 == batch ? tokens : std::min(longest, room);
    request.draft = depth;
    generations.emplace_back(loop.enqueue(std::move(request)));
  }
  Turn turn{.tokens = std::vector<std::vector<int32_t>>(generations.size())};
  auto last = finish(generations.back(), turn.tokens.back());
  for (Generation& other : generations) other.cancel();
  if (!last) return fail(std::move(last.error()));
  turn.usage = std::move(last->usage);
  for (size_t other = 0; other + 1 < generations.size(); ++other) {
    auto ended = finish(generations[other], turn.tokens[other]);
    if (!ended) return fail(std::move(ended.error()));
  }
  return turn;
}

/// The longest text of each sequence so far; others may end earlier, but not differ.
bool agree(std::vector<std::vector<int32_t>>& longest,
           const std::vector<std::vector<int32_t>>& tokens) {
  longest.resize(tokens.size());
  bool same = true;
  for (size_t sequence = 0; sequence < tokens.size(); ++sequence) {
    const auto& now = tokens[sequence];
    auto& known = longest[sequence];
    const auto common = static_cast<ptrdiff_t>(std::min(now.size(), known.size()));
    same = same && std::equal(now.begin(), now.begin() + common, known.begin());
    if (same && now.size() > known.size()) known = now;
  }
  return same;
}

/// The turn in the middle, by speed.
const Turn& middle(std::vector<Turn>& turns) {
  const auto at = turns.begin() + static_cast<ptrdiff_t>(turns.size() / 2);
  std::nth_element(turns.begin(), at, turns.end(), [](const Turn& left, const Turn& right) {
    return left.tokens_per_second() < right.tokens_per_second();
  });
  return *at;
}

class DraftBench {
 public:
  DraftBench(const BenchOptions& options, int max_draft);

  Result<void> read(EngineLoop& loop, std::vector<BenchText> texts);
  Result<void> count_bytes(EngineLoop& loop, RoundCosts& costs);
  Result<void> measure(EngineLoop& loop);
  std::vector<DraftCase> take() { return std::move(cases_); }

 private:
  Result<void> measure_case(EngineLoop& loop, const Openings& openings, DraftCase& result) const;
  void progress(const std::string& step, const DraftCase& on) const;

  const BenchOptions& options_;
  std::vector<int> depths_{0};
  std::vector<Openings> openings_{};  // by text
  std::vector<DraftCase> cases_{};    // batches of the first text, then of the next one
};

DraftBench::DraftBench(const BenchOptions& options, int max_draft) : options_(options) {
  std::vector<int> asked = options.draft->depths;
  if (asked.empty()) {
    for (int depth = 1; depth <= max_draft; ++depth) asked.push_back(depth);
    asked.push_back(kDraftAuto);
  }
  for (const int depth : asked)
    if (std::find(depths_.begin(), depths_.end(), depth) == depths_.end()) depths_.push_back(depth);
}

void DraftBench::progress(const std::string& step, const DraftCase& on) const {
  if (options_.on_progress)
    options_.on_progress("drafts: " + step + " " + on.text + ", " + std::to_string(on.context) +
                         " tokens, batch " + std::to_string(on.batch));
}

/// Reads the prompts, and lays the cases out.
Result<void> DraftBench::read(EngineLoop& loop, std::vector<BenchText> texts) {
  for (const BenchText& text : texts) {
    const auto context = static_cast<int>(text.prompts.front().size());
    size_t longest = 0;
    for (const auto& prompt : text.prompts) longest = std::max(longest, prompt.size());
    const int room = loop.model().max_context() - static_cast<int>(longest) - 1;
    if (room < kFewestTokens)
      return fail({.code = Errc::kContextLimit,
                   .what = "no room for drafts behind the text",
                   .where = "bench, " + text.name,
                   .expected = "a context of " + std::to_string(longest + 1 + kFewestTokens) +
                               " tokens or more",
                   .found = std::to_string(loop.model().max_context())});
    for (const int batch : options_.draft->batches) {
      DraftCase each{.text = text.name,
                     .context = context,
                     .batch = batch,
                     .tokens = std::min(options_.draft->tokens, room)};
      for (const int depth : depths_) each.rows.push_back({.depth = depth});
      cases_.push_back(std::move(each));
    }
    progress("reading", cases_.back());
    auto opened = open(loop, text);
    if (!opened) return fail(std::move(opened.error()));
    openings_.push_back(std::move(*opened));
  }
  return {};
}

Result<void> DraftBench::count_bytes(EngineLoop& loop, RoundCosts& costs) {
  const size_t batches = options_.draft->batches.size();
  for (size_t at = 0; at < cases_.size(); ++at) {
    DraftCase& each = cases_[at];
    progress("counting bytes of", each);
    for (DraftRow& row : each.rows) {
      if (row.depth == kDraftAuto) continue;
      costs.restart();
      const int tokens = std::min(each.tokens, kCountedTokens);
      auto turn = run_turn(loop, openings_[at / batches], each.batch, row.depth, tokens);
      if (!turn) return fail(std::move(turn.error()));
      row.bytes_per_round = costs.bytes_per_round(each.batch * (row.depth + 1));
    }
  }
  return {};
}

Result<void> DraftBench::measure(EngineLoop& loop) {
  const size_t batches = options_.draft->batches.size();
  for (size_t at = 0; at < cases_.size(); ++at) {
    progress("measuring", cases_[at]);
    auto status = measure_case(loop, openings_[at / batches], cases_[at]);
    if (!status) return status;
  }
  return {};
}

Result<void> DraftBench::measure_case(EngineLoop& loop, const Openings& openings,
                                      DraftCase& result) const {
  std::vector<std::vector<Turn>> turns(result.rows.size());  // by depth
  std::vector<std::vector<int32_t>> longest;
  for (int round = 0; round <= kTurns; ++round) {
    for (size_t at = 0; at < result.rows.size(); ++at) {
      DraftRow& row = result.rows[at];
      auto turn = run_turn(loop, openings, result.batch, row.depth, result.tokens);
      if (!turn) return fail(std::move(turn.error()));
      row.same_text = agree(longest, turn->tokens) && row.same_text;
      if (round > 0) turns[at].push_back(std::move(*turn));
    }
  }
  for (size_t at = 0; at < result.rows.size(); ++at) {
    DraftRow& row = result.rows[at];
    const Turn& typical = middle(turns[at]);
    const RoundUsage& rounds = typical.usage.rounds;
    const double seconds = typical.usage.decode_seconds;
    row.tokens_per_second = typical.tokens_per_second();
    row.seconds_per_round = seconds / rounds.rounds;
    row.verify_share = rounds.verify_seconds / seconds;
    row.draft_share = rounds.draft_seconds / seconds;
    row.drafts = typical.usage.drafts;
  }
  return {};
}

Error out_of_range(std::string what, std::string expected, int found) {
  return {.code = Errc::kInvalidArgument,
          .what = std::move(what),
          .where = "bench",
          .expected = std::move(expected),
          .found = std::to_string(found)};
}

}  // namespace

Result<void> check_draft_bench(const BenchOptions& options) {
  if (!options.draft) return {};
  const int most = options.engine.max_draft;
  for (const int depth : options.draft->depths)
    if (depth < kDraftAuto || depth > most)
      return fail(
          out_of_range("draft out of range", "auto, or 0 to " + std::to_string(most), depth));
  if (options.draft->batches.empty())
    return fail(out_of_range("no batch to measure", "one batch size or more", 0));
  const auto smallest =
      std::min_element(options.draft->batches.begin(), options.draft->batches.end());
  if (*smallest < 1) return fail(out_of_range("batch out of range", "at least 1", *smallest));
  if (options.draft->tokens < kFewestTokens)
    return fail(out_of_range("too few tokens to measure drafts",
                             "at least " + std::to_string(kFewestTokens), options.draft->tokens));
  return {};
}

int largest_batch(const DraftBenchOptions& options) {
  return *std::max_element(options.batches.begin(), options.batches.end());
}

Result<std::vector<DraftCase>> bench_drafts(std::unique_ptr<LoadedModel> model,
                                            const BenchOptions& options,
                                            const std::vector<int>& contexts) {
  if (!model->has_draft())
    return fail({.code = Errc::kUnsupported,
                 .what = "nothing to draft with",
                 .where = "bench",
                 .found = model->draft_note()});
  const bool trained = options.synthetic == SyntheticWeights::kNone;
  auto texts = bench_texts(trained ? options.engine.model_dir : std::string(),
                           model->config().vocab_size, contexts, largest_batch(*options.draft));
  if (!texts) return fail(std::move(texts.error()));

  DraftBench bench(options, model->options().max_draft);
  {
    RoundCosts costs(model->ops());
    model->replace_ops(costs);
    EngineLoop counted(std::move(model));
    if (auto status = bench.read(counted, std::move(*texts)); !status)
      return fail(std::move(status.error()));
    if (auto status = bench.count_bytes(counted, costs); !status)
      return fail(std::move(status.error()));
    model = counted.release();
    model->replace_ops(model->ops());
  }
  EngineLoop loop(std::move(model));
  if (auto status = bench.measure(loop); !status) return fail(std::move(status.error()));
  return bench.take();
}

}  // namespace tessera
