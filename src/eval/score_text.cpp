// SPDX-License-Identifier: Apache-2.0
// `tessera eval`: negative log-likelihood of a text through the public engine.
#include <tessera/verify.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

namespace tessera {

/// Two tokens of text, of which the second is scored, and one generated token.
constexpr int kLeastContext = 3;

Result<TextScore> score_text(Engine& engine, const std::vector<int32_t>& ids,
                             const std::function<void(double fraction)>& on_progress) {
  // A request needs room for one generated token.
  const auto window = static_cast<size_t>(engine.info().max_context - 1);
  const auto start = std::chrono::steady_clock::now();
  TextScore score;
  double sum = 0;
  if (ids.size() < 2)
    return fail({.code = Errc::kInvalidArgument,
                 .what = "text too short to score",
                 .expected = "at least 2 tokens",
                 .found = std::to_string(ids.size())});
  if (engine.info().max_context < kLeastContext)
    return fail({.code = Errc::kContextLimit,
                 .what = "context too short to score a text",
                 .expected = "at least " + std::to_string(kLeastContext) + " tokens",
                 .found = std::to_string(engine.info().max_context)});
  for (size_t begin = 0; begin + 1 < ids.size(); begin += window) {
    const size_t end = std::min(begin + window, ids.size());
    Request request;
    request.prompt.assign(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                          ids.begin() + static_cast<std::ptrdiff_t>(end));
    request.sampling.temperature = 0.0F;
    request.max_tokens = 1;
    request.prompt_logprobs = true;
    Result<Generation> generation = engine.submit(std::move(request));
    if (!generation) return fail(generation.error());
    for (Event event = generation->next();; event = generation->next()) {
      if (event.kind == Event::Kind::kPrefill && on_progress)
        on_progress(static_cast<double>(begin + static_cast<size_t>(event.prefilled)) /
                    static_cast<double>(ids.size()));
      if (event.kind != Event::Kind::kFinished) continue;
      if (event.error) return fail(*event.error);
      if (event.prompt_logprobs.size() != end - begin - 1)
        return fail({.code = Errc::kInternal,
                     .what = "window was not scored",
                     .where = "tokens from " + std::to_string(begin),
                     .expected = std::to_string(end - begin - 1) + " log-probabilities",
                     .found = std::to_string(event.prompt_logprobs.size())});
      for (const float logprob : event.prompt_logprobs) sum -= static_cast<double>(logprob);
      score.tokens += static_cast<int>(event.prompt_logprobs.size());
      break;
    }
  }
  score.mean_nll = sum / score.tokens;
  if (!std::isfinite(score.mean_nll))
    return fail({.code = Errc::kNumerics,
                 .what = "mean negative log-likelihood is not finite",
                 .expected = "a finite number",
                 .found = std::to_string(score.mean_nll)});
  score.perplexity = std::exp(score.mean_nll);
  score.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return score;
}

}  // namespace tessera
