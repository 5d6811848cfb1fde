// SPDX-License-Identifier: Apache-2.0
// Filters, tests, methods and global functions by name, and how they read their arguments.
#pragma once

#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace tessera::jinja {

struct Arguments {
  List positional{};
  std::vector<std::pair<std::string, Value>> keywords{};
};

/// Takes arguments in the order of a Python signature; `done` refuses what was not taken.
class ArgumentReader {
 public:
  ArgumentReader(Run& run, std::string_view callee, const Arguments& arguments)
      : run_(run), callee_(callee), arguments_(arguments) {}

  bool has(std::string_view name) const;
  Value required(std::string_view name);
  Value optional(std::string_view name, Value otherwise);
  int64_t integer(std::string_view name, int64_t otherwise);
  bool flag(std::string_view name);
  void done();

 private:
  Run& run_;
  std::string_view callee_;
  const Arguments& arguments_;
  size_t next_ = 0;
  size_t keywords_taken_ = 0;
};

using Builtin = Value (*)(Run&, const Value&, const Arguments&);
using Predicate = bool (*)(Run&, const Value&, const Arguments&);
struct NamedBuiltin {
  std::string_view name;
  Builtin run;
};
struct NamedPredicate {
  std::string_view name;
  Predicate run;
};

bool has_filter(std::string_view name);
bool has_test(std::string_view name);
Value apply_filter(Run& run, std::string_view name, const Value& value, const Arguments& arguments);
bool apply_test(Run& run, std::string_view name, const Value& value, const Arguments& arguments);

/// Whether Python values of this type have a method of that name that a sandbox lets through.
bool has_method(const Value& self, std::string_view name);
/// Whether they have one that the sandbox hides because it would change its object.
bool is_changing_method(const Value& self, std::string_view name);
Value call_method(Run& run, const Value& self, std::string_view name, const Arguments& arguments);

/// What a render gets from outside besides its variables.
struct Surroundings {
  std::function<std::time_t()> clock = [] { return std::time(nullptr); };
};
bool has_global(std::string_view name);
/// `namespace()` is not here: namespaces belong to the evaluator.
Value call_global(Run& run, const Surroundings& surroundings, std::string_view name,
                  const Arguments& arguments);

// Shared by filters and methods.
/// len(value).
int64_t length_of(Run& run, const Value& value);
/// item.a.b by a dotted path.
Value by_path(Run& run, Value item, const Value& path);
/// text * count.
Value repeat_text(Run& run, std::string_view text, int64_t count);
/// text.replace(old, fresh, count); a negative count means all.
Value replace_text(Run& run, std::string_view text, std::string_view old, std::string_view fresh,
                   int64_t count);

}  // namespace tessera::jinja
