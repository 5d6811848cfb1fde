// SPDX-License-Identifier: Apache-2.0
// Escape sequences of quoted literals, as in Python source.
#include <charconv>

#include "text/jinja/lexer.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

constexpr size_t kMaxOctalDigits = 3;

/// The character of a one-letter escape, or -1.
int simple_escape(char letter) {
  switch (letter) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'a': return '\a';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'v': return '\v';
    case '\\':
    case '\'':
    case '"': return letter;
    default: return -1;
  }
}

size_t hex_digits(char letter) {
  switch (letter) {
    case 'x': return 2;
    case 'u': return 4;
    case 'U': return 8;
    default: return 0;
  }
}

bool is_octal(char byte) { return byte >= '0' && byte <= '7'; }

void append_code_point(Run& run, std::string& out, uint32_t value) {
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  if (surrogate || value > 0x10FFFF) return run.fail_syntax("escape of a code point that is none");
  strings::append(out, value);
}

/// Decodes the escape whose letter is body[pos]; returns the position after it.
size_t decode_escape(Run& run, std::string_view body, size_t pos, std::string& out) {
  const char letter = body[pos];
  if (letter == '\n') return pos + 1;
  if (const int simple = simple_escape(letter); simple >= 0) {
    out += static_cast<char>(simple);
    return pos + 1;
  }
  uint32_t value = 0;
  if (const size_t digits = hex_digits(letter); digits > 0) {
    const char* begin = body.data() + pos + 1;
    const bool enough = pos + 1 + digits <= body.size();
    const auto parsed = enough ? std::from_chars(begin, begin + digits, value, 16)
                               : std::from_chars_result{begin, std::errc::invalid_argument};
    if (parsed.ec != std::errc{} || parsed.ptr != begin + digits)
      run.fail_syntax("truncated escape", "\\" + std::string(1, letter));
    append_code_point(run, out, value);
    return pos + 1 + digits;
  }
  if (is_octal(letter)) {
    size_t end = pos;
    while (end < body.size() && end - pos < kMaxOctalDigits && is_octal(body[end]))
      value = value * 8 + static_cast<uint32_t>(body[end++] - '0');
    append_code_point(run, out, value);
    return end;
  }
  if (letter == 'N') run.fail_unsupported("\\N{...} escapes");
  out += '\\';
  return pos;
}

}  // namespace

std::string decode_string_literal(Run& run, std::string_view body) {
  std::string out;
  for (size_t pos = 0; pos < body.size() && run.ok();) {
    if (body[pos] != '\\') {
      out += body[pos++];
      continue;
    }
    pos = decode_escape(run, body, pos + 1, out);
  }
  return out;
}

}  // namespace tessera::jinja
