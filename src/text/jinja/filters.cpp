// SPDX-License-Identifier: Apache-2.0
// Lookup of filters by name, and what several filters share.
#include <algorithm>

#include "text/jinja/filter_tables.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

Builtin find_filter(std::string_view name) {
  for (const auto& table :
       {text_filters(), number_filters(), sequence_filters(), selection_filters()})
    for (const NamedBuiltin& filter : table)
      if (filter.name == name) return filter.run;
  return nullptr;
}

}  // namespace

bool has_filter(std::string_view name) { return find_filter(name) != nullptr; }

Value apply_filter(Run& run, std::string_view name, const Value& value,
                   const Arguments& arguments) {
  const Builtin filter = find_filter(name);
  if (filter == nullptr) run.fail_unsupported("the filter '" + std::string(name) + "'");
  return run.ok() && spend_on(run, value) ? filter(run, value, arguments) : Value{};
}

int64_t length_of(Run& run, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return 0;
    case Kind::kString:
      run.spend_on(value.text());
      return static_cast<int64_t>(strings::length(value.text()));
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: return static_cast<int64_t>(value.items().size());
    case Kind::kDict: return static_cast<int64_t>(value.dict().size());
    case Kind::kRange: return value.get<Range>().size();
    case Kind::kLoop: return value.get<std::shared_ptr<LoopState>>()->length();
    default: run.fail_type(std::string("object of type '") + value.type_name() + "' has no len()");
  }
  return 0;
}

/// `path` is None, an integer, or a text like "function.name" or "items.0".
Value by_path(Run& run, Value item, const Value& path) {
  if (path.is_none()) return item;
  if (!path.is_string()) return subscript(run, item, path);
  for (const std::string& part : strings::split(path.text(), ".", -1)) {
    if (!run.spend()) break;
    constexpr size_t kMaxIndexDigits = 18;
    const bool index = strings::all_of(part, strings::is_digit) && part.size() <= kMaxIndexDigits &&
                       part.find_first_not_of("0123456789") == std::string::npos;
    item = subscript(run, item, index ? Value::integer(std::stoll(part)) : Value::literal(part));
  }
  return item;
}

Value repeat_text(Run& run, std::string_view text, int64_t count) {
  return arithmetic(run, "*", Value::literal(std::string(text)), Value::integer(count));
}

Value replace_text(Run& run, std::string_view text, std::string_view old, std::string_view fresh,
                   int64_t count) {
  // The size is known before the work is done, so that no limit is overshot.
  int64_t hits = strings::count(text, old);
  if (count >= 0) hits = std::min(hits, count);
  const uint64_t grown = static_cast<uint64_t>(hits) * fresh.size() + text.size();
  if (!run.allocate(grown)) return {};
  return Value::literal(strings::replace(text, old, fresh, count));
}

}  // namespace tessera::jinja
