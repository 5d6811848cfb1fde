// SPDX-License-Identifier: Apache-2.0
// Typed access to the keys of a JSON object; the first problem is kept, later reads return dummies.
#pragma once

#include <tessera/error.h>
#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// The first error of a file, shared by all its objects.
class FirstError {
 public:
  void report(Error error) {
    if (!error_) error_ = std::move(error);
  }
  explicit operator bool() const { return error_.has_value(); }
  const Error& get() const { return *error_; }

 private:
  std::optional<Error> error_{};
};

struct IntRange {
  int64_t low = 0;
  int64_t high = 0;
};

/// One object of the file. A key that is null counts as absent. Reads without a fallback require
/// the key.
class ConfigFields {
 public:
  /// `prefix` stands before a key in messages: "config.json: text_config.".
  ConfigFields(const boost::json::object& object, std::string prefix, FirstError& error)
      : object_(&object), prefix_(std::move(prefix)), error_(&error) {}

  bool has(std::string_view key) const { return find(key) != nullptr; }
  int64_t integer(std::string_view key, IntRange range) const;
  int64_t integer(std::string_view key, IntRange range, int64_t fallback) const;
  int size(std::string_view key, IntRange range) const {
    return static_cast<int>(integer(key, range));
  }
  int size(std::string_view key, IntRange range, int fallback) const {
    return static_cast<int>(integer(key, range, fallback));
  }
  /// Finite and in [low, high].
  double number(std::string_view key, double low, double high) const;
  double number(std::string_view key, double low, double high, double fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  std::vector<int64_t> integers(std::string_view key, IntRange range) const;
  /// An integer or a non-empty list of integers.
  std::vector<int64_t> one_or_more(std::string_view key, IntRange range) const;
  std::vector<std::string> texts(std::string_view key) const;
  /// Keys that are not null, in the order of the file.
  std::vector<std::string> keys() const;
  /// Equal values under `key` (1e7 is 10000000), or one of the objects lacks it.
  bool agrees(std::string_view key, const ConfigFields& other) const;
  /// The object under `key`, nothing when it is absent or no object (which is an error).
  std::optional<ConfigFields> child(std::string_view key) const;

  /// Reports a value that breaks a rule; does nothing when `holds`.
  void require(bool holds, std::string_view key, std::string expected, std::string found) const;
  /// Same for something that is well-formed but cannot run.
  void support(bool holds, std::string_view key, std::string expected, std::string found) const;

 private:
  const boost::json::value* find(std::string_view key) const;
  void bad(Errc code, std::string_view key, std::string expected, std::string found) const;
  int64_t checked(const boost::json::value& value, std::string_view key, IntRange range) const;
  double checked(const boost::json::value& value, std::string_view key, double low,
                 double high) const;

  const boost::json::object* object_;
  std::string prefix_;
  FirstError* error_;
};

}  // namespace tessera
