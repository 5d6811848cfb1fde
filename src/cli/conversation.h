// SPDX-License-Identifier: Apache-2.0
// Turns of one conversation: each turn reads only what is new, from the state that the last one
// left.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/session.h"

namespace tessera::cli {

class Conversation {
 public:
  /// Both references must outlive the conversation.
  Conversation(Session& session, const RunArgs& args) : session_(session), args_(args) {}

  /// Sends the user's text (in raw mode: appends it) and generates.
  Result<Answer> ask(const std::string& text, const TextSink& on_text);

  Result<void> load_state(const std::string& path);
  /// The state after everything that was said, the last generated token included.
  Result<void> save_state(const std::string& path);
  void reset();

 private:
  Result<std::vector<int32_t>> extend(const std::string& text) const;
  Result<std::string> opening(const std::string& text) const;
  Result<std::string> continuation(const std::string& text) const;
  int new_tokens(size_t prompt_tokens) const;
  bool can_resume(const std::vector<int32_t>& prompt) const;
  Result<void> absorb_all();

  Session& session_;
  const RunArgs& args_;
  std::vector<int32_t> tokens_{};  // everything said so far, as ids
  StateHandle state_{};
};

}  // namespace tessera::cli
