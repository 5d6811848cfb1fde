// SPDX-License-Identifier: Apache-2.0
// Any bytes as a template over a fixed context: an error or a text, within the limits.
#include <cstdint>
#include <string_view>

#include "text/jinja/json_value.h"
#include "text/jinja/template.h"

namespace {

using namespace tessera;

constexpr std::string_view kContext =
    R"({"a": 7, "f": -2.5, "s": "Gr\u00fc\u00dfe <b>", "l": [3, 1, 2], "w": ["b", "A"], "n": null,
        "d": {"name": "x", "items": [1, {"k": "v"}]}, "big": 18446744073709551616,
        "messages": [{"role": "user", "content": " hi "}, {"role": "tool", "content": null}]})";

jinja::Limits small_limits() {
  jinja::Limits limits;
  limits.output_bytes = size_t{1} << 18;
  limits.steps = 50'000;
  limits.created_bytes = uint64_t{1} << 23;
  return limits;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto program = jinja::Template::parse(source, "fuzz", small_limits());
  jinja::Run run(small_limits());
  const auto context = jinja::parse_json(run, kContext, "context");
  if (program && context) static_cast<void>(program->render(run, context->dict()));
  jinja::Run json_run(small_limits());
  static_cast<void>(jinja::parse_json(json_run, source, "fuzz"));
  return 0;
}
