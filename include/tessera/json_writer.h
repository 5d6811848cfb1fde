// SPDX-License-Identifier: Apache-2.0
// Streaming JSON output without a DOM, byte-compatible with Python's json.dumps where asked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Layout of the output. The defaults are the compact form that goes over the wire.
struct JsonStyle {
  std::string item_separator = ",";
  std::string key_separator = ":";
  std::string indent{};           // text of one level, used when `multiline`
  bool multiline = false;         // each item on its own line
  bool ascii = false;             // escape everything beyond printable ASCII
  bool nonfinite_as_null = true;  // else NaN, Infinity, -Infinity as Python writes them

  /// json.dumps(value, ensure_ascii=False) of Python.
  static JsonStyle python();
};

/// Appends to a string it does not own. Calls must form one JSON text: a key before each value of
/// an object. Bytes that are not UTF-8 are written as U+FFFD.
class JsonWriter {
 public:
  explicit JsonWriter(std::string& out, JsonStyle style = {});

  JsonWriter& begin_object() { return begin('{'); }
  JsonWriter& end_object() { return end('}'); }
  JsonWriter& begin_array() { return begin('['); }
  JsonWriter& end_array() { return end(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& string(std::string_view text);
  JsonWriter& integer(int64_t number);
  JsonWriter& unsigned_integer(uint64_t number);
  JsonWriter& real(double number);
  JsonWriter& boolean(bool flag);
  JsonWriter& null();
  /// A finished JSON value, e.g. an integer too long for 64 bits; written as it is.
  JsonWriter& raw(std::string_view json);

 private:
  JsonWriter& begin(char bracket);
  JsonWriter& end(char bracket);
  void before_value();
  void new_line();

  std::string& out_;
  JsonStyle style_;
  std::vector<bool> has_items_{};  // one per open bracket
  bool after_key_ = false;
};

/// Appends `text` as a quoted JSON string.
void append_json_string(std::string& out, std::string_view text, bool ascii);

/// Appends repr(number) of Python: shortest round-trip digits, "1.0", "1e-05", "inf", "nan".
void append_python_float(std::string& out, double number);

}  // namespace tessera
