// SPDX-License-Identifier: Apache-2.0
// Calls of macros, methods and global functions.
#include <algorithm>

#include "text/jinja/evaluator.h"

namespace tessera::jinja {

Arguments Evaluator::arguments(const Expr& expr) {
  Arguments result;
  for (size_t index = 1; index < expr.items.size(); ++index)
    result.positional.push_back(evaluate(*expr.items[index]));
  for (const auto& [keyword, value] : expr.keywords)
    result.keywords.emplace_back(keyword, evaluate(*value));
  if (expr.star_items) {
    const Value rest = evaluate(*expr.star_items);
    if (run_.ok())
      for (Value& item : iterate(run_, rest)) result.positional.push_back(std::move(item));
  }
  if (expr.star_keywords) {
    const Value rest = evaluate(*expr.star_keywords);
    if (run_.ok() && !rest.is(Kind::kDict)) run_.fail_type("'**' needs a mapping");
    if (!run_.ok()) return result;
    for (const auto& [key, value] : rest.dict().entries()) {
      if (!key.is_string()) {
        run_.fail_type("keywords must be strings");
        return result;
      }
      result.keywords.emplace_back(key.text(), value);
    }
  }
  run_.set_position(expr.offset);
  return result;
}

Value Evaluator::call(const Expr& expr) {
  const Value callee = evaluate(*expr.items[0]);
  const Arguments given = arguments(expr);
  if (!run_.ok()) return {};
  if (callee.is_undefined()) {
    run_.fail_type(callee.undefined_reason());
    return {};
  }
  if (!callee.is(Kind::kFunction)) {
    run_.fail_type(std::string("'") + callee.type_name() + "' object is not callable");
    return {};
  }
  return call_function(*callee.get<std::shared_ptr<const Function>>(), given);
}

Value Evaluator::call_function(const Function& function, const Arguments& given) {
  switch (function.type) {
    case Function::Type::kMacro: return call_macro(*function.closure, given);
    case Function::Type::kMethod: return call_method(run_, function.self, function.name, given);
    case Function::Type::kGlobal:
      return function.name == "namespace" ? make_namespace(given)
                                          : call_global(run_, surroundings_, function.name, given);
  }
  return {};
}

Value Evaluator::make_namespace(const Arguments& given) {
  const Value values = call_global(run_, surroundings_, "dict", given);
  if (!run_.allocate(sizeof(Namespace))) return {};
  namespaces_.push_back({values.dict()});
  return Value(Value::Storage(&namespaces_.back()));
}

Value Evaluator::call_macro(const Closure& closure, const Arguments& given) {
  const auto caller_scope = std::exchange(scope_, std::make_shared<Scope>(closure.scope));
  std::string before = std::exchange(output_, {});
  bind_parameters(*closure.macro, given);
  if (run_.ok()) run_block(closure.macro->body);
  scope_ = caller_scope;
  return make_string(run_, std::exchange(output_, std::move(before)));
}

/// Binds in the scope of the call. Defaults are evaluated there too, so they see earlier ones.
void Evaluator::bind_parameters(const Macro& macro, const Arguments& given) {
  const auto& parameters = macro.parameters;
  auto keywords = given.keywords;
  for (size_t index = 0; index < parameters.size() && run_.ok(); ++index) {
    const std::string& parameter = parameters[index];
    if (index < given.positional.size()) {
      scope_->set(parameter, given.positional[index]);
      continue;
    }
    const auto keyword = std::find_if(keywords.begin(), keywords.end(),
                                      [&](const auto& pair) { return pair.first == parameter; });
    const size_t first_default = parameters.size() - macro.defaults.size();
    if (keyword != keywords.end()) {
      scope_->set(parameter, std::move(keyword->second));
      keywords.erase(keyword);
    } else if (index >= first_default) {
      scope_->set(parameter, evaluate(*macro.defaults[index - first_default]));
    } else {
      scope_->set(parameter, Value::undefined("parameter '" + parameter + "' was not provided"));
    }
  }
  const size_t taken = std::min(parameters.size(), given.positional.size());
  const auto extra_begin = given.positional.begin() + static_cast<std::ptrdiff_t>(taken);
  if (macro.uses_varargs) {
    scope_->set("varargs", make_tuple(run_, List(extra_begin, given.positional.end())));
  } else if (taken < given.positional.size()) {
    run_.fail_type("macro '" + macro.name + "' takes not more than " +
                   std::to_string(parameters.size()) + " arguments");
  }
  if (macro.uses_kwargs) {
    Dict rest;
    for (auto& [key, value] : keywords) dict_set(run_, rest, Value::literal(key), std::move(value));
    scope_->set("kwargs", make_dict(run_, std::move(rest)));
  } else if (!keywords.empty()) {
    run_.fail_type("macro '" + macro.name + "' takes no keyword argument '" +
                   keywords.front().first + "'");
  }
}

}  // namespace tessera::jinja
