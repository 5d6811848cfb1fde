// SPDX-License-Identifier: Apache-2.0
// Chat messages to prompt text through the checkpoint's own chat_template.jinja.
#pragma once

#include <tessera/error.h>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct ToolCall {
  std::string name{};
  std::string arguments_json{};  // a JSON object; key order is kept
};

struct ChatMessage {
  std::string role{};  // system, user, assistant, tool
  std::string content{};
  std::string reasoning_content{};     // assistant only
  std::vector<ToolCall> tool_calls{};  // assistant only
};

struct ChatOptions {
  bool add_generation_prompt = true;
  std::string tools_json{};  // JSON array of tool definitions, key order kept; empty: none
  /// Extra template variables as JSON values, e.g. {"enable_thinking", "false"}.
  std::map<std::string, std::string> variables{};
};

class ChatTemplate {
 public:
  /// Reads `model_dir`/chat_template.jinja. Errors: kNotFound, kCorruptFile (with line and column).
  static Result<ChatTemplate> load(const std::string& model_dir);
  static Result<ChatTemplate> parse(std::string_view source, const std::string& where);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// Renders the prompt. A template's raise_exception() comes back as kInvalidArgument with its
  /// text.
  Result<std::string> render(const std::vector<ChatMessage>& messages,
                             const ChatOptions& options) const;
  /// Same with the messages as JSON (content parts, unknown fields): what a server receives.
  Result<std::string> render_json(std::string_view messages_json, const ChatOptions& options) const;

  struct Impl;

 private:
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
