// SPDX-License-Identifier: Apache-2.0
// `tessera eval`: negative log-likelihood of a text through the public engine.
#include <tessera/verify.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace tessera {

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
      for (const float logprob : event.prompt_logprobs) sum -= static_cast<double>(logprob);
      score.tokens += static_cast<int>(event.prompt_logprobs.size());
      break;
    }
  }
  score.mean_nll = sum / std::max(score.tokens, 1);
  score.perplexity = std::exp(score.mean_nll);
  score.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return score;
}

}  // namespace tessera
