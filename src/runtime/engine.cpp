// SPDX-License-Identifier: Apache-2.0
// The public engine: checks what clients ask for, hands it to the loop.
#include <tessera/engine.h>
#include <tessera/state_target.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "core/log.h"
#include "ops/sample.h"
#include "runtime/engine_loop.h"
#include "runtime/state_file.h"

namespace tessera {
namespace {

constexpr size_t kMaxStopIds = 1024;

Error invalid(std::string what, std::string expected, std::string found, std::string hint = {}) {
  return {.code = Errc::kInvalidArgument,
          .what = std::move(what),
          .where = "request",
          .expected = std::move(expected),
          .found = std::move(found),
          .hint = std::move(hint)};
}

Result<void> check_prompt(const Request& request, const LoadedModel& model) {
  if (request.prompt.empty()) return fail(invalid("empty prompt", "at least one token", "none"));
  const int vocab = model.config().vocab_size;
  for (size_t at = 0; at < request.prompt.size(); ++at)
    if (request.prompt[at] < 0 || request.prompt[at] >= vocab)
      return fail(invalid("token id outside the vocabulary", "0 to " + std::to_string(vocab - 1),
                          std::to_string(request.prompt[at]) + " at index " + std::to_string(at)));
  return {};
}

Result<void> check_context(const Request& request, const LoadedModel& model) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  // With max_tokens 0 there must be room for one token at least.
  const int64_t wanted = std::max(request.max_tokens, 1);
  if (prompt + wanted <= model.max_context()) return {};
  return fail({.code = Errc::kContextLimit,
               .what = "the request does not fit the context",
               .where = "request",
               .expected = "prompt and generated tokens together at most " +
                           std::to_string(model.max_context()),
               .found = std::to_string(prompt) + " prompt tokens + " + std::to_string(wanted) +
                        " to generate",
               .hint = "shorten the prompt, lower max_tokens, or load with a larger context"});
}

Result<void> check_draft(const Request& request, const LoadedModel& model) {
  const int most = model.options().max_draft;
  if (request.draft < kDraftAuto || request.draft > most)
    return fail(invalid("draft depth out of range", "0 to " + std::to_string(most),
                        std::to_string(request.draft),
                        "max_draft is set when the model is loaded"));
  if (request.draft <= 0 || model.has_draft()) return {};
  return fail({.code = Errc::kUnsupported,
               .what = "nothing to draft with",
               .where = "request",
               .expected = "draft 0",
               .found = std::to_string(request.draft),
               .hint = model.draft_note()});
}

Result<void> check_resume(const Request& request) {
  if (!request.resume_from) return {};
  const std::vector<int32_t>& known = request.resume_from->tokens();
  if (request.prompt_logprobs)
    return fail(invalid("prompt_logprobs with resume_from", "one of the two", "both",
                        "the resumed tokens are not read again"));
  const bool prefix = known.size() < request.prompt.size() &&
                      std::equal(known.begin(), known.end(), request.prompt.begin());
  if (prefix) return {};
  return fail(
      {.code = Errc::kMismatch,
       .what = "the state does not fit the prompt",
       .where = "resume_from",
       .expected = "a prompt that begins with the " + std::to_string(known.size()) +
                   " tokens of the state and goes on",
       .found = "a different prompt of " + std::to_string(request.prompt.size()) + " tokens"});
}

Result<void> check_request(const Request& request, const LoadedModel& model) {
  if (auto status = check_prompt(request, model); !status) return status;
  if (auto status = request.sampling.validate(model.config().vocab_size); !status) return status;
  if (request.max_tokens < 0)
    return fail(invalid("negative max_tokens", "0 or more", std::to_string(request.max_tokens)));
  if (request.top_logprobs < -1 || request.top_logprobs > ops::kMaxTopTokens)
    return fail(invalid("top_logprobs out of range", "-1 to " + std::to_string(ops::kMaxTopTokens),
                        std::to_string(request.top_logprobs)));
  if (request.stop_ids.size() > kMaxStopIds)
    return fail(invalid("too many stop ids", "at most " + std::to_string(kMaxStopIds),
                        std::to_string(request.stop_ids.size())));
  if (auto status = check_draft(request, model); !status) return status;
  if (auto status = check_context(request, model); !status) return status;
  return check_resume(request);
}

}  // namespace

struct Engine::Impl {
  explicit Impl(std::unique_ptr<LoadedModel> model) : info(model->info()), loop(std::move(model)) {}

  ModelInfo info;
  EngineLoop loop;
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::load(EngineOptions options) {
  try {
    Result<std::unique_ptr<LoadedModel>> model = LoadedModel::load(options);
    if (!model) return fail(std::move(model.error()));
    std::unique_ptr<Engine> engine(new Engine(std::make_unique<Impl>(std::move(*model))));
    for (const KernelChoice& choice : engine->info().kernels)
      log_message(LogLevel::kInfo,
                  "kernel " + choice.op + ": " + choice.kernel + " (" + choice.reason + ")");
    return engine;
  } catch (const std::exception& exception) {
    return fail({.code = Errc::kOutOfMemory,
                 .what = "loading failed",
                 .where = options.model_dir,
                 .found = exception.what()});
  }
}

Result<Generation> Engine::submit(Request request) {
  if (auto status = check_request(request, impl_->loop.model()); !status)
    return fail(std::move(status.error()));
  return Generation(impl_->loop.enqueue(std::move(request)));
}

const ModelInfo& Engine::info() const { return impl_->info; }
EngineStats Engine::stats() const { return impl_->loop.stats(); }

Result<void> Engine::save_state(const StateHandle& state, const std::string& path) const {
  if (!state) return fail(invalid("no state to save", "a state handle", "none"));
  const LoadedModel& model = impl_->loop.model();
  if (state->pages().pool() != model.store().shared_pool())
    return fail({.code = Errc::kMismatch,
                 .what = "state of another engine",
                 .where = path,
                 .expected = "a state that this engine made or loaded",
                 .found = "a state of another one"});
  const auto target = state_target(path);
  if (!target) return fail(target.error());
  return save_state_file(*state, model.state_identity(), *target);
}

Result<StateHandle> Engine::load_state(const std::string& path) {
  const LoadedModel& model = impl_->loop.model();
  return load_state_file(path, model.state_identity(), model.store().shared_pool());
}

const std::vector<int32_t>& Engine::state_tokens(const StateHandle& state) {
  return state->tokens();
}

}  // namespace tessera
