// SPDX-License-Identifier: Apache-2.0
// Methods of dicts and sequences, and the lookup of methods. Like the sandbox of the reference, no
// method that changes its object is let through.
#include "text/jinja/methods.h"

#include <algorithm>
#include <array>

#include "text/jinja/operators.h"

namespace tessera::jinja {
namespace {

Value dict_view(Run& run, const Value& self, const Arguments& arguments, const char* name,
                Value (*pick)(Run&, const Dict::Entry&)) {
  ArgumentReader(run, name, arguments).done();
  List items;
  for (const auto& entry : self.dict().entries())
    if (run.spend()) items.push_back(pick(run, entry));
  return make_view(run, std::move(items), name);
}

Value dict_items(Run& run, const Value& self, const Arguments& arguments) {
  return dict_view(run, self, arguments, "dict_items", [](Run& pair_run, const Dict::Entry& entry) {
    return make_tuple(pair_run, {entry.first, entry.second});
  });
}

Value dict_keys(Run& run, const Value& self, const Arguments& arguments) {
  return dict_view(run, self, arguments, "dict_keys",
                   [](Run&, const Dict::Entry& entry) { return entry.first; });
}

Value dict_values(Run& run, const Value& self, const Arguments& arguments) {
  return dict_view(run, self, arguments, "dict_values",
                   [](Run&, const Dict::Entry& entry) { return entry.second; });
}

Value dict_get(Run& run, const Value& self, const Arguments& arguments) {
  if (!arguments.keywords.empty()) run.fail_type("get() takes no keyword arguments");
  ArgumentReader reader(run, "get", arguments);
  const Value key = reader.required("key");
  Value otherwise = reader.optional("default", Value::none());
  reader.done();
  const auto hash = run.ok() ? hash_key(run, key) : std::nullopt;
  const Value* found = hash ? self.dict().find_hash(*hash) : nullptr;
  return found != nullptr ? *found : otherwise;
}

Value same(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader(run, "copy", arguments).done();
  return self;  // values never change, so the copy may be the original
}

Value sequence_count(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, "count", arguments);
  const Value wanted = reader.required("value");
  reader.done();
  int64_t hits = 0;
  for (const Value& item : iterate(run, self))
    if (run.ok() && equals(run, item, wanted)) ++hits;
  return Value::integer(hits);
}

Value sequence_index(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, "index", arguments);
  const Value wanted = reader.required("value");
  if (reader.has("start")) run.fail_unsupported("index() with a start");
  int64_t index = 0;
  for (const Value& item : iterate(run, self)) {
    if (!run.ok()) return {};
    if (equals(run, item, wanted)) return Value::integer(index);
    ++index;
  }
  run.fail_type("the value is not in the sequence");
  return {};
}

constexpr std::array kDictMethods = {
    NamedBuiltin{"items", dict_items},   NamedBuiltin{"keys", dict_keys},
    NamedBuiltin{"values", dict_values}, NamedBuiltin{"get", dict_get},
    NamedBuiltin{"copy", same},
};
constexpr std::array kListMethods = {
    NamedBuiltin{"count", sequence_count},
    NamedBuiltin{"index", sequence_index},
    NamedBuiltin{"copy", same},
};
constexpr std::array kTupleMethods = {
    NamedBuiltin{"count", sequence_count},
    NamedBuiltin{"index", sequence_index},
};

// These would change their object: the sandbox of the reference makes them undefined, yet they hide
// dict keys of the same name.
constexpr std::array<std::string_view, 5> kDictChanges = {"clear", "pop", "popitem", "setdefault",
                                                          "update"};
constexpr std::array<std::string_view, 8> kListChanges = {"append", "clear",  "extend",  "insert",
                                                          "pop",    "remove", "reverse", "sort"};

// Python's strings have these too: defined, but refused when called.
constexpr std::array<std::string_view, 13> kRefusedStringMethods = {
    "casefold",  "center",       "encode",    "expandtabs",  "format",   "format_map", "isascii",
    "isdecimal", "isidentifier", "isnumeric", "isprintable", "swapcase", "translate"};

std::span<const NamedBuiltin> methods_of(const Value& self) {
  switch (self.kind()) {
    case Kind::kString: return string_methods();
    case Kind::kDict: return kDictMethods;
    case Kind::kList: return kListMethods;
    case Kind::kTuple:
    case Kind::kRange: return kTupleMethods;
    default: return {};
  }
}

Builtin find_method(const Value& self, std::string_view name) {
  for (const NamedBuiltin& method : methods_of(self))
    if (method.name == name) return method.run;
  return nullptr;
}

bool is_refused_method(const Value& self, std::string_view name) {
  if (self.is(Kind::kDict)) return name == "fromkeys";
  return self.is_string() &&
         std::count(kRefusedStringMethods.begin(), kRefusedStringMethods.end(), name) > 0;
}

}  // namespace

bool has_method(const Value& self, std::string_view name) {
  return find_method(self, name) != nullptr || is_refused_method(self, name);
}

bool is_changing_method(const Value& self, std::string_view name) {
  if (self.is(Kind::kDict)) return std::count(kDictChanges.begin(), kDictChanges.end(), name) > 0;
  return self.is(Kind::kList) && std::count(kListChanges.begin(), kListChanges.end(), name) > 0;
}

Value call_method(Run& run, const Value& self, std::string_view name, const Arguments& arguments) {
  const Builtin method = find_method(self, name);
  if (method != nullptr) return spend_on(run, self) ? method(run, self, arguments) : Value{};
  run.fail_unsupported(std::string(self.type_name()) + "." + std::string(name) + "()");
  return {};
}

}  // namespace tessera::jinja
