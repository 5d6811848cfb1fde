// SPDX-License-Identifier: Apache-2.0
// Committed renderings of jinja2: the same bytes, or both refuse.
#include <gtest/gtest.h>
#include <fstream>
#include <iterator>

#include "text/jinja/json_value.h"
#include "text/jinja/template.h"

namespace tessera {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(TemplateVectors, RenderAsJinjaDoes) {
  const std::string json = read("tests/text/template_vectors.json");
  jinja::Run run{jinja::Limits{}};
  const auto vectors = jinja::parse_json(run, json, "template_vectors.json");
  ASSERT_TRUE(vectors) << vectors.error().message();
  const jinja::Value* shared = vectors->dict().find("context");
  size_t rendered = 0;
  size_t refused = 0;
  for (const jinja::Value& vector : vectors->dict().find("cases")->items()) {
    const jinja::Value* file = vector.dict().find("file");
    const std::string source =
        file != nullptr ? read(file->text()) : vector.dict().find("source")->text();
    const jinja::Value* own = vector.dict().find("context");
    const jinja::Value* text = vector.dict().find("text");
    jinja::Run render_run{jinja::Limits{}};
    const auto program = jinja::Template::parse(source, "vector");
    const auto result =
        program ? program->render(render_run, own->is_none() ? shared->dict() : own->dict())
                : Result<std::string>(fail(program.error()));
    if (!result && result.error().code == Errc::kUnsupported) {
      ++refused;
    } else if (text->is_none()) {
      EXPECT_FALSE(result) << source << "\n" << *result;
    } else {
      ASSERT_TRUE(result) << source << "\n" << result.error().message();
      EXPECT_EQ(*result, text->text()) << source;
      ++rendered;
    }
  }
  EXPECT_GT(rendered, 250U);
  EXPECT_LT(refused, 30U);
}

}  // namespace
}  // namespace tessera
