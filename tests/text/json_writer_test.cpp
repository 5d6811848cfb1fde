// SPDX-License-Identifier: Apache-2.0
// JsonWriter against Python's json.dumps, and what it does with broken bytes and odd numbers.
#include <gtest/gtest.h>
#include <tessera/json_writer.h>
#include <bit>
#include <fstream>
#include <iterator>
#include <limits>

#include "text/jinja/json_value.h"
#include "text/jinja/print.h"

namespace tessera {
namespace {

jinja::Value parse(jinja::Run& run, const std::string& text) {
  const auto value = jinja::parse_json(run, text, "test");
  EXPECT_TRUE(value) << value.error().message() << "\n" << text;
  return value ? *value : jinja::Value{};
}

class JsonVectors : public testing::Test {
 protected:
  jinja::Run run_{jinja::Limits{}};
  jinja::Value vectors_ = [this] {
    std::ifstream file("tests/text/json_writer_vectors.json", std::ios::binary);
    return parse(run_, std::string(std::istreambuf_iterator<char>(file), {}));
  }();
};

TEST_F(JsonVectors, FloatsAreWrittenAsPythonDoes) {
  const auto& floats = vectors_.dict().find("floats")->items();
  ASSERT_GT(floats.size(), 500U);
  for (const jinja::Value& pair : floats) {
    std::string text;
    append_python_float(text, std::bit_cast<double>(pair.items()[0].get<int64_t>()));
    EXPECT_EQ(text, pair.items()[1].text());
  }
}

TEST_F(JsonVectors, ValuesAreWrittenAsPythonDoes) {
  JsonStyle ascii = JsonStyle::python();
  ascii.ascii = true;
  JsonStyle compact;
  compact.ascii = true;
  JsonStyle indented = JsonStyle::python();
  indented.item_separator = ",";
  indented.multiline = true;
  indented.indent = "  ";
  const std::vector<JsonStyle> styles = {JsonStyle::python(), ascii, compact, indented};
  const auto& texts = vectors_.dict().find("texts")->items();
  ASSERT_GT(texts.size(), 200U);
  for (const jinja::Value& expected : texts) {
    const jinja::Value value = parse(run_, expected.items()[0].text());
    for (size_t style = 0; style < styles.size(); ++style)
      EXPECT_EQ(to_json(run_, value, styles[style], false), expected.items()[style].text());
  }
}

TEST(JsonWriter, WritesNestedValuesWithoutADocument) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().key("id").integer(-7).key("list").begin_array();
  json.unsigned_integer(std::numeric_limits<uint64_t>::max()).real(1).boolean(true).null();
  json.begin_object().end_object().begin_array().end_array().raw("1e5");
  json.end_array().key("text").string("a\"\\\n\x01").end_object();
  EXPECT_EQ(text, R"({"id":-7,"list":[18446744073709551615,1.0,true,null,{},[],1e5],)"
                  R"("text":"a\"\\\n\u0001"})");
}

TEST(JsonWriter, BrokenBytesBecomeReplacementCharacters) {
  const auto written = [](std::string_view bytes) {
    std::string text;
    append_json_string(text, bytes, false);
    return text;
  };
  EXPECT_EQ(written("a\xFF"
                    "b"),
            "\"a\uFFFDb\"");
  EXPECT_EQ(written("\xED\xA0\x80"), "\"\uFFFD\uFFFD\uFFFD\"");
  EXPECT_EQ(written("\xE4\xB8"), "\"\uFFFD\"");
  EXPECT_EQ(written("\xF0\x9F\x91\x8B"), "\"\U0001F44B\"");
  EXPECT_EQ(written(""), "\"\"");
}

TEST(JsonWriter, NonFiniteNumbersDependOnTheStyle) {
  const auto written = [](double number, const JsonStyle& style) {
    std::string text;
    JsonWriter(text, style).real(number);
    return text;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(written(infinity, {}), "null");
  EXPECT_EQ(written(nan, {}), "null");
  EXPECT_EQ(written(infinity, JsonStyle::python()), "Infinity");
  EXPECT_EQ(written(-infinity, JsonStyle::python()), "-Infinity");
  EXPECT_EQ(written(nan, JsonStyle::python()), "NaN");
}

TEST(JsonReader, RefusesBrokenTextByPosition) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":}", "01", "\"\\ud800\"", "\"\xFF\"", "1 2",
                           "nul", "'a'", "[1", "\"\n\""}) {
    jinja::Run run{jinja::Limits{}};
    const auto value = jinja::parse_json(run, text, "here");
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().code, Errc::kInvalidArgument);
    EXPECT_NE(value.error().where.find("here at byte"), std::string::npos);
  }
  jinja::Run run{jinja::Limits{}};
  EXPECT_FALSE(jinja::parse_json(run, std::string(5000, '['), "deep"));
}

TEST(JsonReader, KeepsKeyOrderLongIntegersAndExactDoubles) {
  jinja::Run run{jinja::Limits{}};
  const std::string text =
      R"({"z": 1, "a": 123456789012345678901234567890, "m": 0.3, "t": 1e-320, "z2": 9007199254740993.0})";
  const auto value = jinja::parse_json(run, text, "test");
  ASSERT_TRUE(value);
  EXPECT_EQ(to_json(run, *value, JsonStyle::python(), false),
            R"({"z": 1, "a": 123456789012345678901234567890, "m": 0.3, "t": 1e-320, )"
            R"("z2": 9007199254740992.0})");
  const auto repeated = jinja::parse_json(run, R"({"a": 1, "b": 2, "a": 3})", "test");
  ASSERT_TRUE(repeated);
  EXPECT_EQ(to_json(run, *repeated, JsonStyle::python(), false), R"({"a": 3, "b": 2})");
}

}  // namespace
}  // namespace tessera
