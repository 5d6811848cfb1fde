// SPDX-License-Identifier: Apache-2.0
// Renders templates for template_oracle.py: one JSON case per line in, one JSON result per line
// out.
#include <tessera/json_writer.h>
#include <iostream>
#include <string>

#include "text/jinja/json_value.h"
#include "text/jinja/template.h"

namespace {

using namespace tessera;

Result<std::string> render(const std::string& line) {
  jinja::Run run{jinja::Limits{}};
  const auto parsed = jinja::parse_json(run, line, "case");
  if (!parsed) return fail(parsed.error());
  const jinja::Dict& fields = parsed->dict();
  const auto program = jinja::Template::parse(fields.find("source")->text(), "case");
  if (!program) return fail(program.error());
  return program->render(run, fields.find("context")->dict());
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto text = render(line);
    std::string out;
    JsonWriter json(out);
    json.begin_object();
    if (text) {
      json.key("text").string(*text);
    } else {
      json.key("error").string(text.error().message());
      json.key("code").string(errc_name(text.error().code));
    }
    json.end_object();
    std::cout << out << '\n' << std::flush;
  }
  return 0;
}
