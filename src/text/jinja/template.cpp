// SPDX-License-Identifier: Apache-2.0
// Parsing and rendering with errors that name line and column.
#include "text/jinja/template.h"

#include <algorithm>

#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {

Error Template::located(const Run& run) const {
  Error error = run.error();
  const size_t offset = std::min(run.error_position(), source_.size());
  const std::string_view before = std::string_view(source_).substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
  const size_t column = 1 + strings::length(before.substr(line_start));
  error.where = where_ + ":" + std::to_string(line) + ":" + std::to_string(column);
  return error;
}

Result<Template> Template::parse(std::string_view source, std::string where, const Limits& limits) {
  if (source.size() > limits.source_bytes)
    return fail({.code = Errc::kUnsupported,
                 .what = "the template is too long",
                 .where = where,
                 .expected = "at most " + std::to_string(limits.source_bytes) + " bytes",
                 .found = std::to_string(source.size())});
  const size_t invalid = strings::find_invalid(source);
  if (invalid != std::string_view::npos)
    return fail({.code = Errc::kCorruptFile,
                 .what = "the template is not UTF-8",
                 .where = where + " at byte " + std::to_string(invalid)});
  Template result(normalize_source(source), std::move(where));
  Run run(limits);
  auto tokens = tokenize(run, result.source_);
  if (run.ok()) result.block_ = Parser(run, std::move(tokens)).parse();
  if (!run.ok()) return fail(result.located(run));
  return result;
}

Result<std::string> Template::render(Run& run, const Dict& context,
                                     const Surroundings& surroundings) const {
  std::string text = Evaluator(run, surroundings, context).render(block_);
  if (!run.ok()) return fail(located(run));
  return text;
}

}  // namespace tessera::jinja
