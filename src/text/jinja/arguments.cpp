// SPDX-License-Identifier: Apache-2.0
// Binding of call arguments to the parameters of a builtin.
#include <algorithm>

#include "text/jinja/builtins.h"

namespace tessera::jinja {

bool ArgumentReader::has(std::string_view name) const {
  return next_ < arguments_.positional.size() ||
         std::any_of(
             arguments_.keywords.begin(), arguments_.keywords.end(),
             [&](const auto& keyword) { return keyword.first == name; });
}

Value ArgumentReader::optional(std::string_view name, Value otherwise) {
  const bool positional = next_ < arguments_.positional.size();
  const auto keyword = std::find_if(arguments_.keywords.begin(), arguments_.keywords.end(),
                                    [&](const auto& candidate) { return candidate.first == name; });
  if (keyword != arguments_.keywords.end()) {
    if (positional)
      run_.fail_type(std::string(callee_) + "() got two values for '" + std::string(name) + "'");
    ++keywords_taken_;
    return keyword->second;
  }
  return positional ? arguments_.positional[next_++] : otherwise;
}

Value ArgumentReader::required(std::string_view name) {
  if (!has(name))
    run_.fail_type(std::string(callee_) + "() misses its argument '" + std::string(name) + "'");
  return optional(name, Value{});
}

int64_t ArgumentReader::integer(std::string_view name, int64_t otherwise) {
  const Value value = optional(name, Value::integer(otherwise));
  const auto number = value.as_integer();
  if (!number)
    run_.fail_type(std::string(callee_) + "() needs an integer '" + std::string(name) + "', not " +
                   value.type_name());
  return number.value_or(otherwise);
}

bool ArgumentReader::flag(std::string_view name) {
  return optional(name, Value::boolean(false)).truthy();
}

void ArgumentReader::done() {
  if (next_ < arguments_.positional.size() || keywords_taken_ < arguments_.keywords.size())
    run_.fail_type(std::string(callee_) + "() got arguments it does not know");
}

}  // namespace tessera::jinja
