// SPDX-License-Identifier: Apache-2.0
// Filters on sequences and mappings as a whole: length, ends, order, defaults.
#include <algorithm>
#include <array>

#include "text/jinja/filter_tables.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

Value length(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "length", arguments).done();
  return Value::integer(length_of(run, value));
}

Value with_default(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "default", arguments);
  const Value otherwise = reader.optional("default_value", Value::literal(""));
  const bool falsy_too = reader.flag("boolean");
  reader.done();
  return value.is_undefined() || (falsy_too && !value.truthy()) ? otherwise : value;
}

Value items(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "items", arguments).done();
  List pairs;
  if (value.is(Kind::kDict)) {
    for (const auto& [key, item] : value.dict().entries())
      if (run.ok()) pairs.push_back(make_tuple(run, {key, item}));
  } else if (!value.is_undefined()) {
    run.fail_type("items needs a mapping");
  }
  return make_iterator(run, std::move(pairs));
}

Value first(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "first", arguments).done();
  if (value.is(Kind::kIterator)) {
    Iterator& iterator = *value.get<std::shared_ptr<Iterator>>();
    if (iterator.next < iterator.items->items.size()) return iterator.items->items[iterator.next++];
    return Value::undefined("the sequence has no first item");
  }
  const List all = iterate(run, value);
  return all.empty() ? Value::undefined("the sequence has no first item") : all.front();
}

Value last(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "last", arguments).done();
  if (value.is(Kind::kIterator)) run.fail_type("a generator cannot be reversed");
  const List all = iterate(run, value);
  return all.empty() ? Value::undefined("the sequence has no last item") : all.back();
}

Value to_list(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "list", arguments).done();
  return make_list(run, iterate(run, value));
}

Value reverse(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "reverse", arguments).done();
  const Value step = Value::integer(-1);
  if (value.is_string()) return slice(run, value, Value::none(), Value::none(), step);
  List all = iterate(run, value);
  std::reverse(all.begin(), all.end());
  if (value.is(Kind::kIterator)) return make_list(run, std::move(all));
  return make_iterator(run, std::move(all));
}

Value folded(Run& run, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  return make_string(run, strings::lower(value.text()));
}

struct Keyed {
  Value key;
  Value item;
};

/// A merge sort of our own: comparisons may fail at any time, which std::sort does not allow.
List sorted(Run& run, std::vector<Keyed> keyed, bool reversed) {
  std::vector<Keyed> spare(keyed.size());
  for (size_t width = 1; width < keyed.size() && run.ok(); width *= 2) {
    for (size_t begin = 0; begin < keyed.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, keyed.size());
      const size_t end = std::min(begin + 2 * width, keyed.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        const bool both = left < middle && right < end;
        const bool take_right =
            both ? ordered(run, reversed ? ">" : "<", keyed[right].key, keyed[left].key)
                 : left >= middle;
        spare[out] = std::move(keyed[take_right ? right++ : left++]);
      }
    }
    keyed.swap(spare);
  }
  List result;
  for (Keyed& entry : keyed) result.push_back(std::move(entry.item));
  return result;
}

Value sort(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "sort", arguments);
  const bool reversed = reader.flag("reverse");
  const bool case_sensitive = reader.flag("case_sensitive");
  const Value attribute_list = reader.optional("attribute", Value::none());
  reader.done();
  const auto paths = attribute_list.is_string() ? strings::split(attribute_list.text(), ",", -1)
                                                : std::vector<std::string>{};
  std::vector<Keyed> keyed;
  for (const Value& item : iterate(run, value)) {
    List key;
    for (const std::string& path : paths)
      key.push_back(folded(run, by_path(run, item, Value::literal(path)), case_sensitive));
    if (paths.empty())
      key.push_back(folded(run, by_path(run, item, attribute_list), case_sensitive));
    keyed.push_back({make_list(run, std::move(key)), item});
    if (!run.ok()) return {};
  }
  return make_list(run, sorted(run, std::move(keyed), reversed));
}

Value dictsort(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "dictsort", arguments);
  const bool case_sensitive = reader.flag("case_sensitive");
  const Value by = reader.optional("by", Value::literal("key"));
  const bool reversed = reader.flag("reverse");
  reader.done();
  const bool by_key = by.is_string() && by.text() == "key";
  if (!by_key && !(by.is_string() && by.text() == "value"))
    run.fail_type("dictsort sorts by 'key' or 'value'");
  if (!value.is(Kind::kDict)) run.fail_type("dictsort needs a mapping");
  if (!run.ok()) return {};
  std::vector<Keyed> keyed;
  for (const auto& [key, item] : value.dict().entries()) {
    keyed.push_back(
        {folded(run, by_key ? key : item, case_sensitive), make_tuple(run, {key, item})});
    if (!run.ok()) return {};
  }
  return make_list(run, sorted(run, std::move(keyed), reversed));
}

template <bool kMax>
Value extreme(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, kMax ? "max" : "min", arguments);
  const bool case_sensitive = reader.flag("case_sensitive");
  const Value path = reader.optional("attribute", Value::none());
  reader.done();
  Value best = Value::undefined("the sequence is empty");
  Value best_key;
  bool any = false;
  for (const Value& item : iterate(run, value)) {
    Value key = folded(run, by_path(run, item, path), case_sensitive);
    if (any && !ordered(run, kMax ? ">" : "<", key, best_key)) continue;
    if (!run.ok()) return {};
    any = true;
    best = item;
    best_key = std::move(key);
  }
  return best;
}

Value sum(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "sum", arguments);
  const Value path = reader.optional("attribute", Value::none());
  Value total = reader.optional("start", Value::integer(0));
  reader.done();
  if (total.is_string()) run.fail_type("sum cannot add strings");
  for (const Value& item : iterate(run, value)) {
    if (!run.ok()) return {};
    total = arithmetic(run, "+", total, by_path(run, item, path));
  }
  return total;
}

constexpr std::array kFilters = {
    NamedBuiltin{"length", length},
    NamedBuiltin{"count", length},
    NamedBuiltin{"default", with_default},
    NamedBuiltin{"d", with_default},
    NamedBuiltin{"items", items},
    NamedBuiltin{"first", first},
    NamedBuiltin{"last", last},
    NamedBuiltin{"list", to_list},
    NamedBuiltin{"reverse", reverse},
    NamedBuiltin{"sort", sort},
    NamedBuiltin{"dictsort", dictsort},
    NamedBuiltin{"min", extreme<false>},
    NamedBuiltin{"max", extreme<true>},
    NamedBuiltin{"sum", sum},
};

}  // namespace

std::span<const NamedBuiltin> sequence_filters() { return kFilters; }

}  // namespace tessera::jinja
