// SPDX-License-Identifier: Apache-2.0
// A loaded model with its tokenizer and template, and one generation on it.
#pragma once

#include <tessera/chat.h>
#include <tessera/engine.h>
#include <tessera/tokenizer.h>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"

namespace tessera::cli {

struct Session {
  std::unique_ptr<Engine> engine;
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat{};
};

/// Text-side files only, for what does not need the weights.
Result<Session> open_session(EngineOptions options, bool with_template);

/// Fills `options.model_dir` with the default model when it is empty: models/tiny in the working
/// directory, or in a folder above the program. Refuses what is no folder.
Result<void> choose_model(EngineOptions& options);

/// tokenizer.json of a model folder.
Result<Tokenizer> load_tokenizer(const std::string& dir);

/// Loads the weights behind a progress line.
Result<std::unique_ptr<Engine>> load_engine(EngineOptions options);

/// The model's defaults with what the user set on top.
SamplingParams merge_sampling(const SamplingParams& defaults, const SamplingOverrides& overrides);

struct Answer {
  std::string text{};
  std::vector<int32_t> ids{};   // up to the end of the text, an end-of-text id included
  std::vector<Event> tokens{};  // with log-probabilities, when they were asked for
  std::string stop_string{};    // which one ended the text, empty when none did
  FinishReason reason = FinishReason::kStop;
  Usage usage{};
  StateHandle state{};
};

/// Takes the next piece of an answer; false when it has nowhere to go.
using TextSink = std::function<bool(std::string_view)>;

/// Runs a request to its end; `on_text` gets the answer piece by piece, and ends it when it cannot
/// take one. Ctrl-C cancels it (an InterruptScope must be alive). A failed request comes back as
/// its error.
Result<Answer> generate(Session& session, Request request, const std::vector<std::string>& stops,
                        const TextSink& on_text);

/// "stop", "length" or "cancelled".
const char* reason_name(FinishReason reason);

/// Token counts and speeds on one line of standard error.
void print_stats(const Usage& usage);

}  // namespace tessera::cli
