// SPDX-License-Identifier: Apache-2.0
// Filters that go through a sequence item by item: map, select, reject, unique. Jinja runs them
// lazily; here they run at once, which differs only in when an error shows.
#include <array>
#include <set>

#include "text/jinja/filter_tables.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

Arguments without_first(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

std::string name_argument(Run& run, const Value& value) {
  if (value.is_string()) return value.text();
  run.fail_type("expected the name of a filter or test");
  return {};
}

Value map_attribute(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "map", arguments);
  const Value path = reader.required("attribute");
  const Value otherwise = reader.optional("default", Value::none());
  reader.done();
  if (!value.truthy()) return make_iterator(run, {});
  List mapped;
  for (const Value& item : iterate(run, value)) {
    Value part = by_path(run, item, path);
    if (!run.ok()) return {};
    mapped.push_back(part.is_undefined() && !otherwise.is_none() ? otherwise : part);
  }
  return make_iterator(run, std::move(mapped));
}

Value map(Run& run, const Value& value, const Arguments& arguments) {
  const bool by_attribute = arguments.positional.empty() && !arguments.keywords.empty();
  if (by_attribute) return map_attribute(run, value, arguments);
  if (arguments.positional.empty()) {
    run.fail_type("map needs the name of a filter");
    return {};
  }
  if (!value.truthy()) return make_iterator(run, {});
  const std::string name = name_argument(run, arguments.positional.front());
  const Arguments rest = without_first(arguments, 1);
  List mapped;
  for (const Value& item : iterate(run, value)) {
    if (!run.ok()) return {};
    mapped.push_back(apply_filter(run, name, item, rest));
  }
  return make_iterator(run, std::move(mapped));
}

template <bool kKeep, bool kByAttribute>
Value choose(Run& run, const Value& value, const Arguments& arguments) {
  constexpr size_t kTestPosition = kByAttribute ? 1 : 0;
  if (!value.truthy()) return make_iterator(run, {});
  const size_t given = arguments.positional.size();
  if (kByAttribute && given == 0) run.fail_type("the name of an attribute is missing");
  const bool has_test_name = given > kTestPosition;
  const std::string test =
      has_test_name ? name_argument(run, arguments.positional[kTestPosition]) : std::string();
  if (!run.ok()) return {};
  const Arguments rest = has_test_name ? without_first(arguments, kTestPosition + 1) : Arguments{};
  List chosen;
  for (const Value& item : iterate(run, value)) {
    const Value tested = kByAttribute ? by_path(run, item, arguments.positional.front()) : item;
    if (!run.ok()) return {};
    const bool holds = has_test_name ? apply_test(run, test, tested, rest) : tested.truthy();
    if (holds == kKeep) chosen.push_back(item);
  }
  return make_iterator(run, std::move(chosen));
}

Value unique(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "unique", arguments);
  const bool case_sensitive = reader.flag("case_sensitive");
  const Value path = reader.optional("attribute", Value::none());
  reader.done();
  std::set<std::string> seen;
  List kept;
  for (const Value& item : iterate(run, value)) {
    Value key = by_path(run, item, path);
    if (key.is_string() && !case_sensitive) key = make_string(run, strings::lower(key.text()));
    const auto hash = hash_key(run, key);
    if (!hash) return {};
    if (seen.insert(*hash).second) kept.push_back(item);
  }
  return make_iterator(run, std::move(kept));
}

Value attr(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "attr", arguments);
  const Value name = reader.required("name");
  reader.done();
  if (!name.is_string()) run.fail_type("attr needs a name");
  if (value.is(Kind::kDict) && run.ok() && !has_method(value, name.text()))
    return Value::undefined("'dict object' has no attribute '" + name.text() + "'");
  return run.ok() ? attribute(run, value, name.text()) : Value{};
}

constexpr std::array kFilters = {
    NamedBuiltin{"map", map},
    NamedBuiltin{"select", choose<true, false>},
    NamedBuiltin{"reject", choose<false, false>},
    NamedBuiltin{"selectattr", choose<true, true>},
    NamedBuiltin{"rejectattr", choose<false, true>},
    NamedBuiltin{"unique", unique},
    NamedBuiltin{"attr", attr},
};

}  // namespace

std::span<const NamedBuiltin> selection_filters() { return kFilters; }

}  // namespace tessera::jinja
