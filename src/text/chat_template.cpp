// SPDX-License-Identifier: Apache-2.0
// Chat messages to template variables, in the shape that chat templates expect.
#include <tessera/chat.h>

#include <optional>

#include "io/mapped_file.h"
#include "text/jinja/json_value.h"
#include "text/jinja/strings.h"
#include "text/jinja/template.h"

namespace tessera {
namespace {

using jinja::Dict;
using jinja::Kind;
using jinja::List;
using jinja::Run;
using jinja::Value;

void set(Dict& dict, const std::string& name, Value value) {
  dict.set("s" + name, Value::literal(name), std::move(value));
}

std::optional<Error> check_utf8(std::string_view text, const std::string& where) {
  const size_t invalid = jinja::strings::find_invalid(text);
  if (invalid == std::string_view::npos) return std::nullopt;
  return Error{.code = Errc::kInvalidArgument,
               .what = "the text is not UTF-8",
               .where = where + " at byte " + std::to_string(invalid)};
}

/// Arguments of a tool call; an empty text stands for no arguments.
Result<Value> parse_arguments(Run& run, std::string_view json, const std::string& where) {
  if (json.empty()) return make_dict(run, Dict{});
  auto parsed = jinja::parse_json(run, json, where);
  if (!parsed) return parsed;
  if (!parsed->is(Kind::kDict))
    return fail({.code = Errc::kInvalidArgument,
                 .what = "tool call arguments of the wrong type",
                 .where = where,
                 .expected = "a JSON object",
                 .found = parsed->type_name()});
  return parsed;
}

Result<Value> tool_call_value(Run& run, const ToolCall& call, const std::string& where) {
  if (auto error = check_utf8(call.name, where)) return fail(*error);
  auto arguments = parse_arguments(run, call.arguments_json, where + ".arguments");
  if (!arguments) return arguments;
  Dict function;
  set(function, "name", make_string(run, call.name));
  set(function, "arguments", std::move(*arguments));
  Dict result;
  set(result, "type", make_string(run, "function"));
  set(result, "function", make_dict(run, std::move(function)));
  return make_dict(run, std::move(result));
}

Result<Value> message_value(Run& run, const ChatMessage& message, const std::string& where) {
  for (const std::string* text : {&message.role, &message.content, &message.reasoning_content})
    if (auto error = check_utf8(*text, where)) return fail(*error);
  Dict result;
  set(result, "role", make_string(run, message.role));
  set(result, "content", make_string(run, message.content));
  if (!message.reasoning_content.empty())
    set(result, "reasoning_content", make_string(run, message.reasoning_content));
  List calls;
  for (const ToolCall& call : message.tool_calls) {
    const std::string call_where = where + ".tool_calls[" + std::to_string(calls.size()) + "]";
    auto value = tool_call_value(run, call, call_where);
    if (!value) return value;
    calls.push_back(std::move(*value));
  }
  if (!calls.empty()) set(result, "tool_calls", make_list(run, std::move(calls)));
  return make_dict(run, std::move(result));
}

/// The same dict with one entry replaced or added.
Value with_entry(Run& run, const Value& value, const std::string& name, Value entry) {
  Dict dict = value.dict();
  set(dict, name, std::move(entry));
  return make_dict(run, std::move(dict));
}

/// Clients send arguments as a JSON string; templates want the object.
Result<Value> with_parsed_arguments(Run& run, const Value& call, const std::string& where) {
  if (!call.is(Kind::kDict)) return call;
  const Value* function = call.dict().find("function");
  if (function != nullptr && function->is(Kind::kDict)) {
    auto inner = with_parsed_arguments(run, *function, where + ".function");
    if (!inner) return inner;
    return with_entry(run, call, "function", std::move(*inner));
  }
  const Value* arguments = call.dict().find("arguments");
  if (arguments == nullptr || !arguments->is_string()) return call;
  auto parsed = parse_arguments(run, arguments->text(), where + ".arguments");
  if (!parsed) return parsed;
  return with_entry(run, call, "arguments", std::move(*parsed));
}

Result<Value> normalized_message(Run& run, const Value& message, const std::string& where) {
  if (!message.is(Kind::kDict))
    return fail({.code = Errc::kInvalidArgument,
                 .what = "message of the wrong type",
                 .where = where,
                 .expected = "a JSON object",
                 .found = message.type_name()});
  Value result = message;
  const Value* reasoning = message.dict().find("reasoning");  // the newer name of some servers
  if (reasoning != nullptr && message.dict().find("reasoning_content") == nullptr)
    result = with_entry(run, result, "reasoning_content", *reasoning);
  const Value* calls = message.dict().find("tool_calls");
  if (calls == nullptr || !calls->is(Kind::kList)) return result;
  List parsed_calls;
  for (const Value& call : calls->items()) {
    const std::string call_where =
        where + ".tool_calls[" + std::to_string(parsed_calls.size()) + "]";
    auto parsed = with_parsed_arguments(run, call, call_where);
    if (!parsed) return parsed;
    parsed_calls.push_back(std::move(*parsed));
  }
  return with_entry(run, result, "tool_calls", make_list(run, std::move(parsed_calls)));
}

std::string message_name(size_t index) { return "messages[" + std::to_string(index) + "]"; }

}  // namespace

struct ChatTemplate::Impl {
  jinja::Template program;

  Result<std::string> render(Run& run, Value messages, const ChatOptions& options) const {
    Dict context;
    for (const auto& [name, json] : options.variables) {
      auto value = jinja::parse_json(run, json, "template variable " + name);
      if (!value) return fail(value.error());
      set(context, name, std::move(*value));
    }
    Result<Value> tools = Value::none();
    if (!options.tools_json.empty()) tools = jinja::parse_json(run, options.tools_json, "tools");
    if (!tools) return fail(tools.error());
    set(context, "messages", std::move(messages));
    set(context, "tools", std::move(*tools));
    set(context, "documents", Value::none());
    set(context, "add_generation_prompt", Value::boolean(options.add_generation_prompt));
    return program.render(run, context);
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::load(const std::string& model_dir) {
  const std::string path = model_dir + "/chat_template.jinja";
  const auto source = read_text_file(path, jinja::Limits{}.source_bytes);
  if (source) return parse(*source, path);
  Error error = source.error();
  if (error.code == Errc::kNotFound) error.hint = "chat needs it; plain completion does not";
  return fail(error);
}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, const std::string& where) {
  auto program = jinja::Template::parse(source, where);
  if (!program) return fail(program.error());
  return ChatTemplate(std::make_unique<Impl>(Impl{std::move(*program)}));
}

Result<std::string> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                         const ChatOptions& options) const {
  Run run{jinja::Limits{}};
  List values;
  for (const ChatMessage& message : messages) {
    auto value = message_value(run, message, message_name(values.size()));
    if (!value) return fail(value.error());
    values.push_back(std::move(*value));
  }
  return impl_->render(run, make_list(run, std::move(values)), options);
}

Result<std::string> ChatTemplate::render_json(std::string_view messages_json,
                                              const ChatOptions& options) const {
  Run run{jinja::Limits{}};
  auto parsed = jinja::parse_json(run, messages_json, "messages");
  if (!parsed) return fail(parsed.error());
  if (!parsed->is(Kind::kList))
    return fail({.code = Errc::kInvalidArgument,
                 .what = "messages of the wrong type",
                 .where = "messages",
                 .expected = "a JSON array",
                 .found = parsed->type_name()});
  List values;
  for (const Value& message : parsed->items()) {
    auto value = normalized_message(run, message, message_name(values.size()));
    if (!value) return fail(value.error());
    values.push_back(std::move(*value));
  }
  return impl_->render(run, make_list(run, std::move(values)), options);
}

}  // namespace tessera
