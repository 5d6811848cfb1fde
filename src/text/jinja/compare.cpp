// SPDX-License-Identifier: Apache-2.0
// Equality, order and membership of template values.
#include <algorithm>
#include <cmath>

#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

enum class Order { kLess, kEqual, kGreater, kNone };

constexpr double kInt64Bound = 9223372036854775808.0;  // 2^63

template <class T>
Order order_of(const T& left, const T& right) {
  if (left < right) return Order::kLess;
  if (left > right) return Order::kGreater;
  return left == right ? Order::kEqual : Order::kNone;
}

Order flip(Order order) {
  if (order == Order::kLess) return Order::kGreater;
  return order == Order::kGreater ? Order::kLess : order;
}

/// Exact, as a conversion of the integer to double would not be.
Order order_of_mixed(int64_t integer, double real) {
  if (std::isnan(real)) return Order::kNone;
  if (real >= kInt64Bound) return Order::kLess;
  if (real < -kInt64Bound) return Order::kGreater;
  const double whole = std::floor(real);
  const Order order = order_of(integer, static_cast<int64_t>(whole));
  return order == Order::kEqual && real > whole ? Order::kLess : order;
}

bool is_number(const Value& value) {
  return value.is(Kind::kInt) || value.is(Kind::kBool) || value.is(Kind::kFloat);
}

Order order_of_numbers(const Value& left, const Value& right) {
  const auto left_integer = left.as_integer();
  const auto right_integer = right.as_integer();
  if (left_integer && right_integer) return order_of(*left_integer, *right_integer);
  if (left_integer) return order_of_mixed(*left_integer, right.get<double>());
  if (right_integer) return flip(order_of_mixed(*right_integer, left.get<double>()));
  return order_of(left.get<double>(), right.get<double>());
}

bool holds(std::string_view comparison, Order order) {
  if (order == Order::kNone) return false;
  if (order == Order::kEqual) return comparison == "<=" || comparison == ">=";
  return comparison.front() == (order == Order::kLess ? '<' : '>');
}

bool equal_lists(Run& run, const List& left, const List& right) {
  if (left.size() != right.size()) return false;
  for (size_t index = 0; index < left.size() && run.ok(); ++index)
    if (!equals(run, left[index], right[index])) return false;
  return true;
}

bool equal_dicts(Run& run, const Dict& left, const Dict& right) {
  if (left.size() != right.size()) return false;
  for (const auto& [key, value] : left.entries()) {
    const auto hash = hash_key(run, key);
    const Value* other = hash ? right.find_hash(*hash) : nullptr;
    if (other == nullptr || !equals(run, value, *other)) return false;
  }
  return true;
}

bool equal_ranges(const Range& left, const Range& right) {
  const int64_t size = left.size();
  if (size != right.size()) return false;
  if (size == 0) return true;
  return left.start == right.start && (size == 1 || left.step == right.step);
}

}  // namespace

bool equals(Run& run, const Value& left, const Value& right) {
  if (!run.spend()) return false;
  if (is_number(left) && is_number(right)) return order_of_numbers(left, right) == Order::kEqual;
  if (left.kind() != right.kind()) {
    if ((left.is(Kind::kBigInt) && right.is(Kind::kFloat)) ||
        (left.is(Kind::kFloat) && right.is(Kind::kBigInt)))
      run.fail_unsupported("comparing an integer beyond 64 bits");
    return false;
  }
  switch (left.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kBigInt: return *left.get<BigInteger>().digits == *right.get<BigInteger>().digits;
    case Kind::kString:
      return run.spend(std::min(left.text().size(), right.text().size()) / kBytesPerStep) &&
             left.text() == right.text();
    case Kind::kList:
    case Kind::kTuple: return equal_lists(run, left.items(), right.items());
    case Kind::kDict: return equal_dicts(run, left.dict(), right.dict());
    case Kind::kRange: return equal_ranges(left.get<Range>(), right.get<Range>());
    case Kind::kNamespace: return left.get<Namespace*>() == right.get<Namespace*>();
    default: run.fail_unsupported(std::string("comparing values of type ") + left.type_name());
  }
  return false;
}

bool ordered(Run& run, std::string_view comparison, const Value& left, const Value& right) {
  if (!run.spend()) return false;
  if (is_number(left) && is_number(right)) return holds(comparison, order_of_numbers(left, right));
  if (left.is_string() && right.is_string()) {
    run.spend(std::min(left.text().size(), right.text().size()) / kBytesPerStep);
    return holds(comparison, order_of(left.text(), right.text()));
  }
  const bool sequences =
      left.kind() == right.kind() && (left.is(Kind::kList) || left.is(Kind::kTuple));
  if (sequences) {
    const List& first = left.items();
    const List& second = right.items();
    const size_t common = std::min(first.size(), second.size());
    for (size_t index = 0; index < common && run.ok(); ++index)
      if (!equals(run, first[index], second[index]))
        return run.ok() && ordered(run, comparison, first[index], second[index]);
    return holds(comparison, order_of(first.size(), second.size()));
  }
  if (left.is(Kind::kBigInt) || right.is(Kind::kBigInt)) {
    run.fail_unsupported("comparing an integer beyond 64 bits");
  } else {
    run.fail_type("'" + std::string(comparison) + "' not supported between " + left.type_name() +
                  " and " + right.type_name());
  }
  return false;
}

bool contains(Run& run, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (item.is_string()) {
        run.spend_on(container.text());
        return strings::find(container.text(), item.text()) != std::string_view::npos;
      }
      run.fail_type(std::string("'in <string>' needs a string on the left, not ") +
                    item.type_name());
      return false;
    case Kind::kDict: {
      const auto hash = hash_key(run, item);
      return hash && container.dict().find_hash(*hash) != nullptr;
    }
    default: break;
  }
  for (const Value& candidate : iterate(run, container))
    if (run.ok() && equals(run, candidate, item)) return true;
  return false;
}

}  // namespace tessera::jinja
