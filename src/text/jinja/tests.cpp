// SPDX-License-Identifier: Apache-2.0
// What may follow `is`: defined, string, mapping, odd, eq and the like.
#include <array>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

using KindTest = bool (*)(const Value&);

template <KindTest kTest>
bool kind_test(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "test", arguments).done();
  return kTest(value);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_boolean(const Value& value) { return value.is(Kind::kBool); }
bool is_true(const Value& value) { return value.is(Kind::kBool) && value.get<bool>(); }
bool is_false(const Value& value) { return value.is(Kind::kBool) && !value.get<bool>(); }
bool is_integer(const Value& value) { return value.is(Kind::kInt) || value.is(Kind::kBigInt); }
bool is_float(const Value& value) { return value.is(Kind::kFloat); }
bool is_number(const Value& value) {
  return is_integer(value) || is_float(value) || is_boolean(value);
}
bool is_mapping(const Value& value) { return value.is(Kind::kDict); }
bool is_callable(const Value& value) {
  return value.is(Kind::kFunction) || value.is_undefined() || value.is(Kind::kLoop);
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBigInt:
    case Kind::kFloat:
    case Kind::kNamespace:
    case Kind::kFunction: return false;
    default: return true;
  }
}

bool is_sequence(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kRange: return true;
    default: return false;
  }
}

template <bool kUpper>
bool has_case(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "test", arguments).done();
  return strings::has_only_case(to_text(run, value), kUpper);
}

Value remainder(Run& run, const Value& value, const Value& divisor) {
  return arithmetic(run, "%", value, divisor);
}

template <int64_t kRest>
bool has_parity(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "test", arguments).done();
  return equals(run, remainder(run, value, Value::integer(2)), Value::integer(kRest)) && run.ok();
}

bool is_divisible(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "divisibleby", arguments);
  const Value divisor = reader.required("num");
  reader.done();
  return run.ok() && equals(run, remainder(run, value, divisor), Value::integer(0)) && run.ok();
}

Value other_operand(Run& run, const Arguments& arguments) {
  ArgumentReader reader(run, "test", arguments);
  Value other = reader.required("other");
  reader.done();
  return other;
}

bool is_equal(Run& run, const Value& value, const Arguments& arguments) {
  const Value other = other_operand(run, arguments);
  return run.ok() && equals(run, value, other);
}

bool is_unequal(Run& run, const Value& value, const Arguments& arguments) {
  const Value other = other_operand(run, arguments);
  return run.ok() && !equals(run, value, other);
}

/// 0: "<", 1: "<=", 2: ">", 3: ">=".
template <int kComparison>
bool is_ordered(Run& run, const Value& value, const Arguments& arguments) {
  static constexpr std::array<std::string_view, 4> kNames = {"<", "<=", ">", ">="};
  const Value other = other_operand(run, arguments);
  return run.ok() && ordered(run, kNames[kComparison], value, other);
}

bool is_in(Run& run, const Value& value, const Arguments& arguments) {
  const Value container = other_operand(run, arguments);
  return run.ok() && contains(run, container, value);
}

bool is_same(Run& run, const Value& value, const Arguments& arguments) {
  const Value other = other_operand(run, arguments);
  const bool singleton = value.is_none() || value.is(Kind::kBool);
  if (value.kind() != other.kind()) return false;
  if (!singleton) run.fail_unsupported("sameas for anything but true, false and none");
  return run.ok() && equals(run, value, other);
}

bool is_filter_name(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "filter", arguments).done();
  return value.is_string() && has_filter(value.text());
}

bool is_test_name(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "test", arguments).done();
  return value.is_string() && has_test(value.text());
}

constexpr std::array kTests = {
    NamedPredicate{"defined", kind_test<is_defined>},
    NamedPredicate{"undefined", kind_test<is_undefined>},
    NamedPredicate{"none", kind_test<is_none>},
    NamedPredicate{"string", kind_test<is_string>},
    NamedPredicate{"boolean", kind_test<is_boolean>},
    NamedPredicate{"true", kind_test<is_true>},
    NamedPredicate{"false", kind_test<is_false>},
    NamedPredicate{"integer", kind_test<is_integer>},
    NamedPredicate{"float", kind_test<is_float>},
    NamedPredicate{"number", kind_test<is_number>},
    NamedPredicate{"mapping", kind_test<is_mapping>},
    NamedPredicate{"iterable", kind_test<is_iterable>},
    NamedPredicate{"sequence", kind_test<is_sequence>},
    NamedPredicate{"callable", kind_test<is_callable>},
    NamedPredicate{"upper", has_case<true>},
    NamedPredicate{"lower", has_case<false>},
    NamedPredicate{"odd", has_parity<1>},
    NamedPredicate{"even", has_parity<0>},
    NamedPredicate{"divisibleby", is_divisible},
    NamedPredicate{"eq", is_equal},
    NamedPredicate{"==", is_equal},
    NamedPredicate{"equalto", is_equal},
    NamedPredicate{"ne", is_unequal},
    NamedPredicate{"!=", is_unequal},
    NamedPredicate{"lt", is_ordered<0>},
    NamedPredicate{"<", is_ordered<0>},
    NamedPredicate{"lessthan", is_ordered<0>},
    NamedPredicate{"le", is_ordered<1>},
    NamedPredicate{"<=", is_ordered<1>},
    NamedPredicate{"gt", is_ordered<2>},
    NamedPredicate{">", is_ordered<2>},
    NamedPredicate{"greaterthan", is_ordered<2>},
    NamedPredicate{"ge", is_ordered<3>},
    NamedPredicate{">=", is_ordered<3>},
    NamedPredicate{"in", is_in},
    NamedPredicate{"sameas", is_same},
    NamedPredicate{"filter", is_filter_name},
    NamedPredicate{"test", is_test_name},
};

Predicate find_test(std::string_view name) {
  for (const NamedPredicate& test : kTests)
    if (test.name == name) return test.run;
  return nullptr;
}

}  // namespace

bool has_test(std::string_view name) { return find_test(name) != nullptr; }

bool apply_test(Run& run, std::string_view name, const Value& value, const Arguments& arguments) {
  const Predicate test = find_test(name);
  if (test != nullptr) return spend_on(run, value) && test(run, value, arguments) && run.ok();
  run.fail_unsupported("the test '" + std::string(name) + "'");
  return false;
}

}  // namespace tessera::jinja
