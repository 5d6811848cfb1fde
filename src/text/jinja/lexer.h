// SPDX-License-Identifier: Apache-2.0
// Template source to tokens, with the white-space rules of trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/run.h"

namespace tessera::jinja {

enum class TokenType {
  kData,  // template text, printed as it is
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text{};  // decoded string, name, operator or template text
  int64_t integer = 0;
  double real = 0.0;
  size_t offset = 0;  // in the normalised source
};

/// "\r\n" and "\r" become "\n", and one newline at the very end is dropped.
std::string normalize_source(std::string_view source);

/// Tokens of a normalised source; the last one is kEnd. Fails the run on a syntax error.
std::vector<Token> tokenize(Run& run, std::string_view source);

/// The value of a quoted literal without its quotes. Fails the run on a broken escape.
std::string decode_string_literal(Run& run, std::string_view body);

}  // namespace tessera::jinja
