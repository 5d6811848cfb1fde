// SPDX-License-Identifier: Apache-2.0
// JSON output: separators and brackets, string escapes, numbers as Python prints them.
#include <tessera/json_writer.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/unicode.h"

namespace tessera {
namespace {

constexpr char32_t kReplacementPoint = 0xFFFD;
constexpr size_t kNumberChars = 32;    // a 64-bit integer or a shortest double fits
constexpr int kMinFixedExponent = -4;  // repr() writes 0.0001 but 1e-05
constexpr int kMaxFixedExponent = 16;  // and 1e+16 from here on

template <class Number>
void append_number(std::string& out, Number number) {
  std::array<char, kNumberChars> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  out.append(buffer.data(), end.ptr);
}

void append_u16_escape(std::string& out, uint32_t unit) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kHex[(unit >> shift) & 0xF];
}

void append_ascii_escape(std::string& out, uint32_t code_point) {
  if (code_point < 0x10000) return append_u16_escape(out, code_point);
  const uint32_t rest = code_point - 0x10000;
  append_u16_escape(out, 0xD800 + (rest >> 10));
  append_u16_escape(out, 0xDC00 + (rest & 0x3FF));
}

/// The two-character escape of `byte`, or 0.
char short_escape(char byte) {
  switch (byte) {
    case '"': return '"';
    case '\\': return '\\';
    case '\n': return 'n';
    case '\r': return 'r';
    case '\t': return 't';
    case '\f': return 'f';
    case '\b': return 'b';
    default: return 0;
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view bytes, bool ascii) {
  out += '"';
  for (size_t pos = 0; pos < bytes.size();) {
    const auto step = text::decode_utf8(bytes.substr(pos));
    pos += static_cast<size_t>(step.length);
    const bool valid = step.status == text::Utf8Status::kValid;
    const char32_t point = valid ? step.code_point : kReplacementPoint;
    const char escape = point < 0x80 ? short_escape(static_cast<char>(point)) : char{0};
    if (escape != 0) {
      out += '\\';
      out += escape;
    } else if (point < 0x20 || (ascii && point > 0x7E)) {
      append_ascii_escape(out, point);
    } else {
      text::append_utf8(point, out);
    }
  }
  out += '"';
}

void append_python_float(std::string& out, double number) {
  if (std::isnan(number)) {
    out += "nan";
    return;
  }
  if (std::signbit(number)) out += '-';
  number = std::fabs(number);
  if (std::isinf(number)) {
    out += "inf";
    return;
  }
  std::array<char, kNumberChars> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<size_t>(end.ptr - buffer.data()));
  const size_t mark = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(mark + 1)).c_str());
  if (exponent < kMinFixedExponent || exponent >= kMaxFixedExponent) {
    out += text;
    return;
  }
  std::string digits(text.substr(0, 1));
  if (mark > 1) digits += text.substr(2, mark - 2);
  if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    return;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.resize(whole, '0');
  out += digits.substr(0, whole) + '.';
  out += digits.size() > whole ? digits.substr(whole) : "0";
}

JsonStyle JsonStyle::python() {
  JsonStyle style;
  style.item_separator = ", ";
  style.key_separator = ": ";
  style.nonfinite_as_null = false;
  return style;
}

JsonWriter::JsonWriter(std::string& out, JsonStyle style) : out_(out), style_(std::move(style)) {}

void JsonWriter::new_line() {
  if (!style_.multiline) return;
  out_ += '\n';
  for (size_t level = 0; level < has_items_.size(); ++level) out_ += style_.indent;
}

void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (has_items_.empty()) return;
  if (has_items_.back()) out_ += style_.item_separator;
  has_items_.back() = true;
  new_line();
}

JsonWriter& JsonWriter::begin(char bracket) {
  before_value();
  out_ += bracket;
  has_items_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::end(char bracket) {
  const bool had_items = has_items_.back();
  has_items_.pop_back();
  if (had_items) new_line();
  out_ += bracket;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  before_value();
  append_json_string(out_, name, style_.ascii);
  out_ += style_.key_separator;
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  before_value();
  append_json_string(out_, text, style_.ascii);
  return *this;
}

JsonWriter& JsonWriter::integer(int64_t number) {
  before_value();
  append_number(out_, number);
  return *this;
}

JsonWriter& JsonWriter::unsigned_integer(uint64_t number) {
  before_value();
  append_number(out_, number);
  return *this;
}

JsonWriter& JsonWriter::real(double number) {
  if (std::isfinite(number)) {
    before_value();
    append_python_float(out_, number);
    return *this;
  }
  if (style_.nonfinite_as_null) return null();
  if (std::isnan(number)) return raw("NaN");
  return raw(number > 0 ? "Infinity" : "-Infinity");
}

JsonWriter& JsonWriter::boolean(bool flag) { return raw(flag ? "true" : "false"); }

JsonWriter& JsonWriter::null() { return raw("null"); }

JsonWriter& JsonWriter::raw(std::string_view json) {
  before_value();
  out_ += json;
  return *this;
}

}  // namespace tessera
