// SPDX-License-Identifier: Apache-2.0
// Finding and loading a model, and running one request with stop texts, progress and Ctrl-C.
#include "cli/session.h"

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cli/terminal.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultModel = "models/tiny";

/// The working directory first, then the folders above the program: a build tree finds the model
/// of its source tree.
std::vector<fs::path> default_model_places() {
  std::vector<fs::path> places{kDefaultModel};
  std::error_code ignored;
  fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  while (!folder.empty()) {
    places.push_back(folder / kDefaultModel);
    if (folder == folder.parent_path()) break;
    folder = folder.parent_path();
  }
  return places;
}

Result<void> check_folder(const std::string& dir) {
  std::error_code ignored;
  const fs::file_status status = fs::status(dir, ignored);
  if (fs::is_directory(status)) return {};
  if (fs::exists(status)) {
    return fail({.code = Errc::kNotFound,
                 .what = "not a folder",
                 .where = dir,
                 .expected = "a model folder",
                 .hint = "pass the folder that holds config.json and the weights"});
  }
  return fail({.code = Errc::kNotFound,
               .what = "no such model folder",
               .where = dir,
               .hint = "pass the folder that holds config.json and the weights"});
}

double per_second(int tokens, double seconds) { return seconds > 0.0 ? tokens / seconds : 0.0; }

}  // namespace

Result<void> choose_model(EngineOptions& options) {
  if (!options.model_dir.empty()) return check_folder(options.model_dir);
  std::error_code ignored;
  for (const fs::path& place : default_model_places()) {
    if (!fs::exists(place / "config.json", ignored)) continue;
    options.model_dir = place.string();
    return {};
  }
  return fail({.code = Errc::kNotFound,
               .what = "no model",
               .where = kDefaultModel,
               .expected = "a model folder near the program",
               .hint = "name one with -m DIR"});
}

Result<Tokenizer> load_tokenizer(const std::string& dir) {
  std::error_code ignored;
  if (fs::exists(fs::path(dir) / "config.json", ignored) &&
      !fs::exists(fs::path(dir) / "tokenizer.json", ignored)) {
    return fail({.code = Errc::kNotFound,
                 .what = "the model has no tokenizer",
                 .where = dir,
                 .expected = "tokenizer.json",
                 .hint = "only info, verify and bench work without one"});
  }
  return Tokenizer::load(dir);
}

Result<std::unique_ptr<Engine>> load_engine(EngineOptions options) {
  if (auto chosen = choose_model(options); !chosen) return fail(chosen.error());
  Progress progress("loading " + options.model_dir);
  options.on_load_progress = [&progress](double fraction) { progress.update(fraction); };
  return Engine::load(std::move(options));
}

Result<Session> open_session(EngineOptions options, bool with_template) {
  if (auto chosen = choose_model(options); !chosen) return fail(chosen.error());
  const std::string dir = options.model_dir;
  auto tokenizer = load_tokenizer(dir);
  if (!tokenizer) return fail(tokenizer.error());
  std::optional<ChatTemplate> chat;
  if (with_template) {
    auto loaded = ChatTemplate::load(dir);
    if (!loaded) return fail(loaded.error());
    chat = std::move(*loaded);
  }
  // Rows of the head beyond the tokenizer were never trained; a larger tokenizer fails the load.
  options.valid_vocab = tokenizer->vocab_size();
  options.vocabulary = tokenizer->fingerprint();
  auto engine = load_engine(std::move(options));
  if (!engine) return fail(engine.error());
  return Session{
      .engine = std::move(*engine), .tokenizer = std::move(*tokenizer), .chat = std::move(chat)};
}

SamplingParams merge_sampling(const SamplingParams& defaults, const SamplingOverrides& overrides) {
  SamplingParams merged = defaults;
  merged.temperature = overrides.temperature.value_or(defaults.temperature);
  merged.top_k = overrides.top_k.value_or(defaults.top_k);
  merged.top_p = overrides.top_p.value_or(defaults.top_p);
  merged.min_p = overrides.min_p.value_or(defaults.min_p);
  merged.repetition_penalty = overrides.repetition_penalty.value_or(defaults.repetition_penalty);
  merged.presence_penalty = overrides.presence_penalty.value_or(defaults.presence_penalty);
  merged.frequency_penalty = overrides.frequency_penalty.value_or(defaults.frequency_penalty);
  merged.logit_bias = overrides.logit_bias;
  merged.seed = overrides.seed;
  return merged;
}

const char* reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  return "error";
}

void print_stats(const Usage& usage) {
  const int read = usage.prompt_tokens - usage.cached_tokens;
  std::fprintf(stderr,
               "[prompt %d tokens, %d cached, %d read at %.0f tokens/s; "
               "answer %d tokens at %.1f tokens/s]\n",
               usage.prompt_tokens, usage.cached_tokens, read,
               per_second(read, usage.prefill_seconds), usage.completion_tokens,
               per_second(usage.completion_tokens, usage.decode_seconds));
  const DraftUsage& drafts = usage.drafts;
  if (drafts.rounds == 0) return;
  std::fprintf(stderr, "[drafts: %d rounds, %.2f tokens each; accepted by place:", drafts.rounds,
               drafts.mean_length());
  for (size_t place = 0; place < drafts.proposed.size(); ++place)
    std::fprintf(stderr, " %d of %d", drafts.accepted[place], drafts.proposed[place]);
  std::fprintf(stderr, "]\n");
}

}  // namespace tessera::cli
