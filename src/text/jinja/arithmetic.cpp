// SPDX-License-Identifier: Apache-2.0
// Arithmetic with Python's rules: floor division, sign of the modulus, repetition of sequences.
#include <cmath>
#include <limits>

#include "text/jinja/operators.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMinInt = std::numeric_limits<int64_t>::min();

Value overflow(Run& run) {
  run.fail_unsupported("integer beyond 64 bits");
  return {};
}

Value division_by_zero(Run& run) {
  run.fail_type("division by zero");
  return {};
}

int64_t floor_divide(int64_t left, int64_t right) {
  const int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

/// Never outside the operands' range, as left - quotient * right can be on the way.
int64_t floor_modulo(int64_t left, int64_t right) {
  const int64_t rest = left % right;
  return rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
}

Value integer_power(Run& run, int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return overflow(run);
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow(run);
  }
  return Value::integer(result);
}

Value integer_arithmetic(Run& run, std::string_view name, int64_t left, int64_t right) {
  int64_t result = 0;
  bool too_big = false;
  if (name == "+") {
    too_big = __builtin_add_overflow(left, right, &result);
  } else if (name == "-") {
    too_big = __builtin_sub_overflow(left, right, &result);
  } else if (name == "*") {
    too_big = __builtin_mul_overflow(left, right, &result);
  } else if (name == "**") {
    return integer_power(run, left, right);
  } else if (right == 0) {
    return division_by_zero(run);
  } else if (right == -1) {
    // INT64_MIN // -1 does not fit, and the processor traps on its remainder.
    too_big = name == "//" && left == kMinInt;
    result = name == "//" && !too_big ? -left : 0;
  } else {
    result = name == "%" ? floor_modulo(left, right) : floor_divide(left, right);
  }
  return too_big ? overflow(run) : Value::integer(result);
}

double real_modulo(double left, double right) {
  const double rest = std::fmod(left, right);
  if (rest == 0.0) return std::copysign(0.0, right);
  return (rest < 0) != (right < 0) ? rest + right : rest;
}

double real_floor_divide(double left, double right) {
  const double quotient = (left - real_modulo(left, right)) / right;
  if (quotient == 0.0) return std::copysign(0.0, left / right);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1.0 : floored;
}

Value real_power(Run& run, double left, double right) {
  if (left == 0.0 && right < 0) return division_by_zero(run);
  if (left < 0 && std::isfinite(left) && std::isfinite(right) && std::floor(right) != right) {
    run.fail_unsupported("complex numbers");
    return {};
  }
  const double result = std::pow(left, right);
  if (std::isinf(result) && std::isfinite(left) && std::isfinite(right))
    run.fail_type("numerical result out of range");
  return Value::real(result);
}

Value real_arithmetic(Run& run, std::string_view name, double left, double right) {
  if (name == "+") return Value::real(left + right);
  if (name == "-") return Value::real(left - right);
  if (name == "*") return Value::real(left * right);
  if (name == "**") return real_power(run, left, right);
  if (right == 0.0) return division_by_zero(run);
  if (name == "/") return Value::real(left / right);
  if (name == "%") return Value::real(real_modulo(left, right));
  return Value::real(real_floor_divide(left, right));
}

Value repeat(Run& run, const Value& sequence, int64_t count) {
  const auto times = static_cast<uint64_t>(count < 0 ? 0 : count);
  const bool is_text = sequence.is_string();
  const uint64_t unit = is_text ? sequence.text().size() : sequence.items().size() * sizeof(Value);
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(unit, times, &bytes)) bytes = std::numeric_limits<uint64_t>::max();
  if (!run.allocate(bytes)) return {};
  if (is_text) {
    std::string text;
    text.reserve(bytes);
    for (uint64_t round = 0; round < times && unit > 0; ++round) text += sequence.text();
    return Value::literal(std::move(text));
  }
  List items;
  for (uint64_t round = 0; round < times && unit > 0; ++round)
    items.insert(items.end(), sequence.items().begin(), sequence.items().end());
  return sequence.is(Kind::kList) ? make_list(run, std::move(items))
                                  : make_tuple(run, std::move(items));
}

bool is_repeatable(const Value& value) {
  return value.is_string() || value.is(Kind::kList) || value.is(Kind::kTuple);
}

Value join_sequences(Run& run, const Value& left, const Value& right) {
  if (left.is_string()) {
    if (!run.allocate(left.text().size() + right.text().size())) return {};
    return Value::literal(left.text() + right.text());
  }
  List items = left.items();
  items.insert(items.end(), right.items().begin(), right.items().end());
  return left.is(Kind::kList) ? make_list(run, std::move(items))
                              : make_tuple(run, std::move(items));
}

void fail_operands(Run& run, std::string_view name, const Value& left, const Value& right) {
  if (name == "%" && left.is_string()) return run.fail_unsupported("the '%' operator on strings");
  for (const Value* operand : {&left, &right})
    if (operand->is_undefined()) return run.fail_type(operand->undefined_reason());
  if (left.is(Kind::kBigInt) || right.is(Kind::kBigInt))
    return run.fail_unsupported("arithmetic with an integer beyond 64 bits");
  run.fail_type("unsupported operands for " + std::string(name) + ": " + left.type_name() +
                " and " + right.type_name());
}

}  // namespace

Value arithmetic(Run& run, std::string_view name, const Value& left, const Value& right) {
  const auto left_integer = left.as_integer();
  const auto right_integer = right.as_integer();
  const bool stays_integer = name != "/" && !(name == "**" && right_integer.value_or(0) < 0);
  if (left_integer && right_integer && stays_integer)
    return integer_arithmetic(run, name, *left_integer, *right_integer);
  const auto left_real = left.as_real();
  const auto right_real = right.as_real();
  if (left_real && right_real) return real_arithmetic(run, name, *left_real, *right_real);
  if (name == "+" && left.kind() == right.kind() && is_repeatable(left))
    return join_sequences(run, left, right);
  if (name == "*" && is_repeatable(left) && right_integer) return repeat(run, left, *right_integer);
  if (name == "*" && is_repeatable(right) && left_integer) return repeat(run, right, *left_integer);
  fail_operands(run, name, left, right);
  return {};
}

Value negate(Run& run, const Value& value) {
  if (value.is(Kind::kFloat)) return Value::real(-value.get<double>());
  if (const auto integer = value.as_integer())
    return arithmetic(run, "-", Value::integer(0), value);
  fail_operands(run, "-", Value::integer(0), value);
  return {};
}

}  // namespace tessera::jinja
