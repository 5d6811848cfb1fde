// SPDX-License-Identifier: Apache-2.0
// Variables of one block; names not found here are looked up in the enclosing one.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"

namespace tessera::jinja {

class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) {}

  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get())
      for (const auto& [known, value] : scope->variables_)
        if (known == name) return &value;
    return nullptr;
  }

  /// `name` must outlive the scope, as the names in the syntax tree do.
  void set(std::string_view name, Value value) {
    for (auto& [known, old] : variables_) {
      if (known != name) continue;
      old = std::move(value);
      return;
    }
    variables_.emplace_back(name, std::move(value));
  }

 private:
  std::shared_ptr<Scope> parent_;
  std::vector<std::pair<std::string_view, Value>> variables_{};
};

/// A macro with the scope it was defined in.
struct Closure {
  const Macro* macro;
  std::shared_ptr<Scope> scope;
};

}  // namespace tessera::jinja
