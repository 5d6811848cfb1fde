// SPDX-License-Identifier: Apache-2.0
// Filters on numbers: conversion, absolute value, rounding.
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/jinja/filter_tables.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

constexpr double kInt64Bound = 9223372036854775808.0;  // 2^63
constexpr int64_t kMaxBase = 36;
constexpr int64_t kMaxRoundDigits = 300;

/// Digits with single underscores between them lose these; anything else gives nothing.
std::optional<std::string> plain_digits(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size(); ++pos) {
    const bool inside = pos > 0 && pos + 1 < text.size() && text[pos - 1] != '_';
    if (text[pos] == '_' && !inside) return std::nullopt;
    if (text[pos] != '_') out += text[pos];
  }
  if (out.empty()) return std::nullopt;
  return out;
}

enum class Parsed { kNumber, kInvalid, kTooBig };

/// int(text, base) of Python.
Parsed parse_integer(std::string_view text, int base, int64_t& number) {
  text = strings::strip(text);
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (negative || text.front() == '+')) text.remove_prefix(1);
  const char mark = text.size() > 1 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
  const int prefix_base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
  if (prefix_base != 0 && (base == 0 || base == prefix_base)) {
    text.remove_prefix(2);
    if (!text.empty() && text.front() == '_') text.remove_prefix(1);
    base = prefix_base;
  }
  auto digits = plain_digits(text);
  if (!digits) return Parsed::kInvalid;
  if (base == 0) {
    base = 10;
    if (digits->front() == '0' && digits->find_first_not_of('0') != std::string::npos)
      return Parsed::kInvalid;
  }
  if (digits->front() == '-' || digits->front() == '+') return Parsed::kInvalid;
  if (negative) digits->insert(digits->begin(), '-');
  const char* end = digits->data() + digits->size();
  const auto parsed = std::from_chars(digits->data(), end, number, base);
  if (parsed.ptr != end) return Parsed::kInvalid;
  return parsed.ec == std::errc{} ? Parsed::kNumber : Parsed::kTooBig;
}

/// float(text) of Python.
std::optional<double> parse_real(std::string_view text) {
  text = strings::strip(text);
  const bool negative = !text.empty() && text.front() == '-';
  if (!text.empty() && (negative || text.front() == '+')) text.remove_prefix(1);
  const std::string word = strings::lower(text);
  double number = 0.0;
  if (word == "inf" || word == "infinity") {
    number = std::numeric_limits<double>::infinity();
  } else if (word == "nan") {
    number = std::numeric_limits<double>::quiet_NaN();
  } else {
    const auto digits = plain_digits(text);
    if (!digits || digits->find_first_not_of("0123456789.eE+-") != std::string::npos)
      return std::nullopt;
    if (digits->front() == '-' || digits->front() == '+') return std::nullopt;
    char* end = nullptr;
    number = std::strtod(digits->c_str(), &end);
    if (end != digits->data() + digits->size()) return std::nullopt;
  }
  return negative ? -number : number;
}

/// int(float(value)), the second try of the filter; nothing when Python raises.
std::optional<Value> truncated(Run& run, double number) {
  if (!std::isfinite(number)) return std::nullopt;
  if (number >= kInt64Bound || number < -kInt64Bound) {
    run.fail_unsupported("integer beyond 64 bits");
    return Value{};
  }
  return Value::integer(static_cast<int64_t>(number));
}

Value to_integer(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "int", arguments);
  const Value otherwise = reader.optional("default", Value::integer(0));
  const int64_t base = reader.integer("base", 10);
  reader.done();
  if (value.is_undefined()) run.fail_type(value.undefined_reason());
  if (!run.ok()) return {};
  if (value.is(Kind::kBigInt)) return value;
  if (const auto number = value.as_integer()) return Value::integer(*number);
  if (value.is(Kind::kFloat)) {
    const double real = value.get<double>();
    // int(inf) raises an error that the filter does not catch; int(nan) one that it does.
    if (std::isinf(real)) run.fail_type("cannot convert float infinity to integer");
    return truncated(run, real).value_or(otherwise);
  }
  if (!value.is_string()) return otherwise;
  int64_t number = 0;
  const bool valid_base = base == 0 || (base >= 2 && base <= kMaxBase);
  const Parsed parsed =
      valid_base ? parse_integer(value.text(), static_cast<int>(base), number) : Parsed::kInvalid;
  if (parsed == Parsed::kNumber) return Value::integer(number);
  if (parsed == Parsed::kTooBig) run.fail_unsupported("integer beyond 64 bits");
  const auto real = parse_real(value.text());
  return real ? truncated(run, *real).value_or(otherwise) : otherwise;
}

Value to_real(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "float", arguments);
  const Value otherwise = reader.optional("default", Value::real(0.0));
  reader.done();
  if (value.is_undefined()) run.fail_type(value.undefined_reason());
  if (value.is(Kind::kBigInt))
    return Value::real(std::strtod(value.get<BigInteger>().digits->c_str(), nullptr));
  if (const auto number = value.as_real()) return Value::real(*number);
  const auto parsed = value.is_string() ? parse_real(value.text()) : std::nullopt;
  return parsed ? Value::real(*parsed) : otherwise;
}

Value absolute(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "abs", arguments).done();
  if (value.is(Kind::kFloat)) return Value::real(std::fabs(value.get<double>()));
  const auto number = value.as_integer();
  if (number) return *number < 0 ? negate(run, value) : Value::integer(*number);
  if (value.is_undefined()) run.fail_type(value.undefined_reason());
  run.fail_type(std::string("abs needs a number, not ") + value.type_name());
  return {};
}

/// round(number, digits): decimal rounding of the exact binary value, halves to even.
double round_decimal(double number, int64_t digits) {
  if (!std::isfinite(number) || digits > kMaxRoundDigits) return number;
  std::array<char, 2 * 320> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 std::chars_format::fixed, static_cast<int>(digits));
  double rounded = number;
  std::from_chars(buffer.data(), end.ptr, rounded);
  return rounded;
}

Value round_filter(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "round", arguments);
  const int64_t digits = reader.integer("precision", 0);
  const Value method = reader.optional("method", Value::literal("common"));
  reader.done();
  const auto number = value.as_real();
  if (!number) run.fail_type("round needs a number");
  if (digits < 0) run.fail_unsupported("round to a negative number of digits");
  if (!run.ok()) return {};
  const std::string name = method.is_string() ? method.text() : "";
  if (name == "common") {
    if (const auto integer = value.as_integer()) return Value::integer(*integer);
    return Value::real(round_decimal(*number, digits));
  }
  if (name != "ceil" && name != "floor") run.fail_type("round: unknown method");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = *number * scale;
  if (!std::isfinite(scaled)) run.fail_type("round: the number is too big");
  return Value::real((name == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

constexpr std::array kFilters = {
    NamedBuiltin{"int", to_integer},
    NamedBuiltin{"float", to_real},
    NamedBuiltin{"abs", absolute},
    NamedBuiltin{"round", round_filter},
};

}  // namespace

std::span<const NamedBuiltin> number_filters() { return kFilters; }

}  // namespace tessera::jinja
