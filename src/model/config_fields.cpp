// SPDX-License-Identifier: Apache-2.0
// Type and range checks of configuration values, each with a message that names the key.
#include "model/config_fields.h"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <cmath>
#include <sstream>

namespace tessera {
namespace {

namespace json = boost::json;

constexpr size_t kMaxShown = 60;  // of a wrong value in a message

std::string show(const json::value& value) {
  std::string text = json::serialize(value);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

std::string show(IntRange range) {
  return "an integer from " + std::to_string(range.low) + " to " + std::to_string(range.high);
}

std::string show_range(double low, double high) {
  std::ostringstream text;
  text << "a number from " << low << " to " << high;
  return text.str();
}

/// Integers; a float with an integral value counts, because some writers add ".0".
std::optional<int64_t> as_integer(const json::value& value) {
  if (const int64_t* number = value.if_int64()) return *number;
  if (const double* number = value.if_double()) {
    constexpr double kExact = 9007199254740992.0;  // 2^53
    if (std::floor(*number) == *number && std::abs(*number) <= kExact) {
      return static_cast<int64_t>(*number);
    }
  }
  return std::nullopt;
}

}  // namespace

const json::value* ConfigFields::find(std::string_view key) const {
  const json::value* value = object_->if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void ConfigFields::bad(Errc code, std::string_view key, std::string expected,
                       std::string found) const {
  error_->report({.code = code,
                  .what = code == Errc::kUnsupported ? "unsupported value" : "bad value",
                  .where = prefix_ + std::string(key),
                  .expected = std::move(expected),
                  .found = std::move(found)});
}

void ConfigFields::require(bool holds, std::string_view key, std::string expected,
                           std::string found) const {
  if (!holds) bad(Errc::kCorruptFile, key, std::move(expected), std::move(found));
}

void ConfigFields::support(bool holds, std::string_view key, std::string expected,
                           std::string found) const {
  if (!holds) bad(Errc::kUnsupported, key, std::move(expected), std::move(found));
}

int64_t ConfigFields::checked(const json::value& value, std::string_view key,
                              IntRange range) const {
  const std::optional<int64_t> number = as_integer(value);
  if (!number || *number < range.low || *number > range.high) {
    bad(Errc::kCorruptFile, key, show(range), show(value));
    return range.low;
  }
  return *number;
}

double ConfigFields::checked(const json::value& value, std::string_view key, double low,
                             double high) const {
  json::error_code error;
  const double number = value.is_number() ? value.to_number<double>(error) : std::nan("");
  if (error || !(number >= low && number <= high)) {
    bad(Errc::kCorruptFile, key, show_range(low, high), show(value));
    return low;
  }
  return number;
}

int64_t ConfigFields::integer(std::string_view key, IntRange range) const {
  const json::value* value = find(key);
  if (value != nullptr) return checked(*value, key, range);
  bad(Errc::kCorruptFile, key, show(range), "no such key");
  return range.low;
}

int64_t ConfigFields::integer(std::string_view key, IntRange range, int64_t fallback) const {
  return has(key) ? integer(key, range) : fallback;
}

double ConfigFields::number(std::string_view key, double low, double high) const {
  const json::value* value = find(key);
  if (value != nullptr) return checked(*value, key, low, high);
  bad(Errc::kCorruptFile, key, show_range(low, high), "no such key");
  return low;
}

double ConfigFields::number(std::string_view key, double low, double high, double fallback) const {
  return has(key) ? number(key, low, high) : fallback;
}

bool ConfigFields::boolean(std::string_view key, bool fallback) const {
  const json::value* value = find(key);
  if (value == nullptr) return fallback;
  if (const bool* flag = value->if_bool()) return *flag;
  bad(Errc::kCorruptFile, key, "true or false", show(*value));
  return fallback;
}

std::string ConfigFields::text(std::string_view key, std::string_view fallback) const {
  const json::value* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (const json::string* string = value->if_string()) return std::string(*string);
  bad(Errc::kCorruptFile, key, "a string", show(*value));
  return std::string(fallback);
}

std::vector<int64_t> ConfigFields::integers(std::string_view key, IntRange range) const {
  std::vector<int64_t> numbers;
  const json::value* value = find(key);
  if (value == nullptr) return numbers;
  const json::array* items = value->if_array();
  if (items == nullptr) {
    bad(Errc::kCorruptFile, key, "a list of integers", show(*value));
    return numbers;
  }
  for (const json::value& item : *items) numbers.push_back(checked(item, key, range));
  return numbers;
}

std::vector<int64_t> ConfigFields::one_or_more(std::string_view key, IntRange range) const {
  const json::value* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {checked(*value, key, range)};
  std::vector<int64_t> numbers = integers(key, range);
  require(!numbers.empty(), key, "at least one id", "an empty list");
  return numbers;
}

std::vector<std::string> ConfigFields::texts(std::string_view key) const {
  std::vector<std::string> strings;
  const json::value* value = find(key);
  if (value == nullptr) return strings;
  const json::array* items = value->if_array();
  if (items == nullptr) {
    bad(Errc::kCorruptFile, key, "a list of strings", show(*value));
    return strings;
  }
  for (const json::value& item : *items) {
    const json::string* string = item.if_string();
    if (string == nullptr) bad(Errc::kCorruptFile, key, "a list of strings", show(*value));
    strings.emplace_back(string == nullptr ? std::string() : std::string(*string));
  }
  return strings;
}

std::vector<std::string> ConfigFields::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : *object_) {
    if (!value.is_null()) names.emplace_back(name);
  }
  return names;
}

bool ConfigFields::agrees(std::string_view key, const ConfigFields& other) const {
  const json::value* left = find(key);
  const json::value* right = other.find(key);
  if (left == nullptr || right == nullptr) return true;
  if (!left->is_number() || !right->is_number()) return *left == *right;
  json::error_code ignored;
  return left->to_number<double>(ignored) == right->to_number<double>(ignored);
}

std::optional<ConfigFields> ConfigFields::child(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const json::object* object = value->if_object();
  if (object == nullptr) {
    bad(Errc::kCorruptFile, key, "an object", show(*value));
    return std::nullopt;
  }
  return ConfigFields(*object, prefix_ + std::string(key) + ".", *error_);
}

}  // namespace tessera
