// SPDX-License-Identifier: Apache-2.0
// ChatTemplate: messages, tools and variables as templates see them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <tessera/chat.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>

namespace tessera {
namespace {

using testing::HasSubstr;

ChatTemplate parse(std::string_view source) {
  auto result = ChatTemplate::parse(source, "test");
  EXPECT_TRUE(result) << result.error().message();
  return std::move(*result);
}

TEST(ChatTemplate, RendersTheShippedTemplate) {
  const auto loaded = ChatTemplate::load("models/tiny");
  ASSERT_TRUE(loaded) << loaded.error().message();
  const std::vector<ChatMessage> messages = {
      {.role = "system", .content = " be brief "},
      {.role = "user", .content = "weather?"},
      {.role = "assistant",
       .content = "",
       .tool_calls = {{.name = "get",
                       .arguments_json = R"({"z": "Zürich", "a": [1, 2.0, null]})"}}},
      {.role = "tool", .content = "sunny"}};
  EXPECT_EQ(loaded->render(messages, {}),
            "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nweather?<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n<function=get>\n"
            "<parameter=z>\nZürich\n</parameter>\n<parameter=a>\n[1, 2.0, null]\n</parameter>\n"
            "</function>\n</tool_call><|im_end|>\n"
            "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n<think>\n\n</think>\n\n");
  const auto unknown = loaded->render({{.role = "wizard", .content = "hi"}}, {});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Errc::kInvalidArgument);
  EXPECT_EQ(unknown.error().what, "unknown role: wizard");
  EXPECT_THAT(unknown.error().where, HasSubstr("chat_template.jinja:26:"));
}

TEST(ChatTemplate, ToolsKeepTheirKeyOrderAndDigits) {
  const auto chat = parse("{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}");
  ChatOptions options;
  options.tools_json = R"([{"z":1,"a":{"max":18446744073709551615,"x":1.0,"e":1e-7}},"é"])";
  EXPECT_EQ(
      chat.render({}, options),
      "{\"z\": 1, \"a\": {\"max\": 18446744073709551615, \"x\": 1.0, \"e\": 1e-07}}\n\"é\"\n");
}

TEST(ChatTemplate, VariablesAreJsonAndAbsentToolsAreNone) {
  const auto chat = parse("{{ tools }} {{ add_generation_prompt }} {{ flag }} {{ effort }}");
  ChatOptions options;
  options.add_generation_prompt = false;
  options.variables = {{"flag", "false"}, {"effort", "\"low\""}};
  EXPECT_EQ(chat.render({}, options), "None False False low");
  options.variables["flag"] = "maybe";
  const auto broken = chat.render({}, options);
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().where, HasSubstr("template variable flag"));
}

TEST(ChatTemplate, OptionalFieldsAreAbsentWhenEmpty) {
  const auto chat = parse("{% for m in messages %}{{ m | tojson }}\n{% endfor %}");
  EXPECT_EQ(chat.render({{.role = "user", .content = ""},
                         {.role = "assistant",
                          .content = "a",
                          .reasoning_content = "r",
                          .tool_calls = {{.name = "f", .arguments_json = ""}}}},
                        {}),
            R"({"role": "user", "content": ""})"
            "\n"
            R"({"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": )"
            R"([{"type": "function", "function": {"name": "f", "arguments": {}}}]})"
            "\n");
}

TEST(ChatTemplate, JsonMessagesAreWhatAServerReceives) {
  const auto chat = parse("{% for m in messages %}{{ m | tojson }}\n{% endfor %}");
  EXPECT_EQ(chat.render_json(R"([{"content":null,"role":"assistant","reasoning":"why","tool_calls":[
      {"id":"1","function":{"name":"f","arguments":"{\"b\": 1, \"a\": \"x\"}"}},
      {"name":"g","arguments":""}]},
      {"role":"user","content":[{"type":"text","text":"hi"},{"type":"image"}],"extra":[]}])",
                             {}),
            R"({"content": null, "role": "assistant", "reasoning": "why", "tool_calls": )"
            R"([{"id": "1", "function": {"name": "f", "arguments": {"b": 1, "a": "x"}}}, )"
            R"({"name": "g", "arguments": {}}], "reasoning_content": "why"})"
            "\n"
            R"({"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image"}], )"
            R"("extra": []})"
            "\n");
}

TEST(ChatTemplate, BadInputIsNamed) {
  const auto chat = parse("{{ messages | length }}");
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"{}", "messages"},
      {"[1]", "messages[0]"},
      {"[", "messages at byte"},
      {R"([{"tool_calls":[{"function":{"arguments":"[1]"}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
      {R"([{}, {"tool_calls":[{"arguments":"{"}]}])", "messages[1].tool_calls[0].arguments"},
  };
  for (const auto& [json, where] : cases) {
    const auto result = chat.render_json(json, {});
    ASSERT_FALSE(result) << json;
    EXPECT_EQ(result.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(result.error().where, HasSubstr(where));
  }
  const auto text = chat.render({{.role = "user", .content = "a\xFF"}}, {});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().where, "messages[0] at byte 1");
  const auto call = chat.render(
      {{.role = "assistant", .content = "", .tool_calls = {{.name = "f", .arguments_json = "5"}}}},
      {});
  ASSERT_FALSE(call);
  EXPECT_EQ(call.error().found, "int");
}

TEST(ChatTemplate, MissingFileIsNamed) {
  const auto missing = ChatTemplate::load("no/such/folder");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Errc::kNotFound);
  EXPECT_EQ(missing.error().where, "no/such/folder/chat_template.jinja");
}

TEST(ChatTemplate, OnlyARegularFileOfSensibleSizeIsRead) {
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / ("tessera-chat-" + std::to_string(::getpid()));
  const std::string path = dir / "chat_template.jinja";
  std::filesystem::create_directories(path);
  const auto folder = ChatTemplate::load(dir);
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto fifo = ChatTemplate::load(dir);
  std::filesystem::remove(path);
  std::ofstream(path) << std::string(2 << 20, ' ');
  const auto large = ChatTemplate::load(dir);
  std::filesystem::remove_all(dir);
  for (const auto* refused : {&folder, &fifo}) {
    ASSERT_FALSE(*refused);
    EXPECT_EQ(refused->error().what, "not a regular file");
    EXPECT_EQ(refused->error().where, path);
  }
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, Errc::kCorruptFile);
  EXPECT_THAT(large.error().message(), HasSubstr("at most 1048576 bytes, found 2097152 bytes"));
}

}  // namespace
}  // namespace tessera
