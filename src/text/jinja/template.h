// SPDX-License-Identifier: Apache-2.0
// A parsed template: what the rest of the library sees of the interpreter.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/builtins.h"

namespace tessera::jinja {

/// Immutable after parsing: any number of threads may render at once.
class Template {
 public:
  /// `where` names the template in errors, which add line and column.
  static Result<Template> parse(std::string_view source, std::string where,
                                const Limits& limits = {});

  /// `run` is fresh or has only been used to make the values of `context`.
  Result<std::string> render(Run& run, const Dict& context,
                             const Surroundings& surroundings = {}) const;

 private:
  Template(std::string source, std::string where)
      : source_(std::move(source)), where_(std::move(where)) {}
  Error located(const Run& run) const;

  std::string source_;  // normalised: offsets in the tree refer to it
  std::string where_;
  Block block_{};
};

}  // namespace tessera::jinja
