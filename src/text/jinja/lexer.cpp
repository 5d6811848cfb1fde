// SPDX-License-Identifier: Apache-2.0
// Splits a template into text and tags, then tags into names, literals and operators.
#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

// Longest first, so that the first match is the right one.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

class Lexer {
 public:
  Lexer(Run& run, std::string_view source) : run_(run), source_(source) {}

  std::vector<Token> tokenize() {
    while (run_.ok() && pos_ < source_.size()) next_piece();
    push(TokenType::kEnd, pos_);
    return std::move(tokens_);
  }

 private:
  enum class Tag { kVariable, kBlock, kComment };

  void next_piece();
  void data(size_t begin, size_t end, Tag next, char modifier);
  void raw_block(size_t body);
  size_t skip_block_end(size_t pos);
  size_t match_word_tag(size_t pos, std::string_view word, char& modifier) const;
  void comment();
  void tag(TokenType end_type, char close);
  bool tag_end(TokenType type, char close);
  void token();
  void number();
  void based_number(int base);
  void string(char quote);
  void name();
  void operator_token();

  Token& push(TokenType type, size_t offset) {
    tokens_.push_back({.type = type, .offset = offset});
    return tokens_.back();
  }
  char at(size_t pos) const { return pos < source_.size() ? source_[pos] : '\0'; }
  size_t skip_spaces(size_t pos) const {
    return source_.size() - strings::strip_left(source_.substr(pos)).size();
  }
  void fail(std::string what, size_t offset) {
    run_.set_position(offset);
    run_.fail_syntax(std::move(what));
  }

  Run& run_;
  std::string_view source_;
  size_t pos_ = 0;
  bool line_starting_ = true;  // the previous piece ended with a newline
  std::string brackets_{};     // closing brackets that are still due
  std::vector<Token> tokens_{};
};

char modifier_at(char byte) { return byte == '-' || byte == '+' ? byte : '\0'; }

void Lexer::data(size_t begin, size_t end, Tag next, char modifier) {
  std::string_view text = source_.substr(begin, end - begin);
  if (modifier == '-') {
    text = strings::strip_right(text);
  } else if (modifier != '+' && next != Tag::kVariable) {
    // lstrip_blocks: white space between the start of the line and a tag goes away.
    const size_t newline = text.rfind('\n');
    const size_t line = newline == kNone ? 0 : newline + 1;
    const bool at_line_start = line > 0 || line_starting_;
    if (at_line_start && strings::strip_left(text.substr(line)).empty())
      text = text.substr(0, line);
  }
  if (!text.empty()) push(TokenType::kData, begin).text = text;
}

void Lexer::next_piece() {
  const size_t begin = pos_;
  size_t open = begin;
  while (open != kNone) {
    open = source_.find('{', open);
    if (open == kNone) break;
    const char kind = at(open + 1);
    if (kind == '{' || kind == '%' || kind == '#') break;
    ++open;
  }
  if (open == kNone) {
    push(TokenType::kData, begin).text = source_.substr(begin);
    pos_ = source_.size();
    return;
  }
  const char kind = at(open + 1);
  const char modifier = modifier_at(at(open + 2));
  const Tag tag_kind = kind == '{' ? Tag::kVariable : kind == '%' ? Tag::kBlock : Tag::kComment;
  data(begin, open, tag_kind, modifier);
  run_.set_position(open);
  pos_ = open + 2 + (modifier != '\0' ? 1 : 0);
  line_starting_ = false;
  if (tag_kind == Tag::kComment) return comment();
  if (tag_kind == Tag::kVariable) {
    push(TokenType::kVariableBegin, open);
    return tag(TokenType::kVariableEnd, '}');
  }
  char unused = '\0';
  const size_t raw = match_word_tag(open, "raw", unused);
  if (raw != kNone) return raw_block(raw);
  push(TokenType::kBlockBegin, open);
  tag(TokenType::kBlockEnd, '%');
}

/// Matches `{% word` with its white space at `pos`; returns the position after the word.
size_t Lexer::match_word_tag(size_t pos, std::string_view word, char& modifier) const {
  if (source_.substr(pos, 2) != "{%") return kNone;
  modifier = modifier_at(at(pos + 2));
  const size_t start = skip_spaces(pos + 2 + (modifier != '\0' ? 1 : 0));
  if (source_.substr(start, word.size()) != word) return kNone;
  const size_t after = skip_spaces(start + word.size());
  const bool closes = source_.substr(after, 2) == "%}" || source_.substr(after, 3) == "-%}" ||
                      (word != "raw" && source_.substr(after, 3) == "+%}");
  return closes ? after : kNone;
}

/// `pos` is at "%}", "-%}" or "+%}"; returns where the text after the tag begins.
size_t Lexer::skip_block_end(size_t pos) {
  const char modifier = modifier_at(at(pos));
  pos += modifier != '\0' ? 3 : 2;
  if (modifier == '-') return skip_spaces(pos);
  const bool trims = modifier != '+' && at(pos) == '\n';
  return trims ? pos + 1 : pos;
}

void Lexer::raw_block(size_t tag_end_pos) {
  // Unlike other tags the opening one does not eat a newline, only `-%}` eats white space.
  const bool strips = at(tag_end_pos) == '-';
  const size_t body = strips ? skip_spaces(tag_end_pos + 3) : tag_end_pos + 2;
  line_starting_ = body > 0 && source_[body - 1] == '\n';
  for (size_t open = source_.find("{%", body); open != kNone; open = source_.find("{%", open + 2)) {
    char modifier = '\0';
    const size_t end = match_word_tag(open, "endraw", modifier);
    if (end == kNone) continue;
    data(body, open, Tag::kBlock, modifier);
    pos_ = skip_block_end(end);
    line_starting_ = source_[pos_ - 1] == '\n';
    return;
  }
  run_.fail_syntax("missing end of raw block");
}

void Lexer::comment() {
  const size_t close = source_.find("#}", pos_);
  if (close == kNone) return run_.fail_syntax("missing end of comment");
  const char modifier = close > pos_ ? modifier_at(source_[close - 1]) : '\0';
  pos_ = close + 2;
  if (modifier == '-') {
    pos_ = skip_spaces(pos_);
  } else if (modifier != '+' && at(pos_) == '\n') {
    ++pos_;
  }
  line_starting_ = source_[pos_ - 1] == '\n';
}

bool Lexer::tag_end(TokenType type, char close) {
  if (!brackets_.empty()) return false;
  const char modifier = modifier_at(at(pos_));
  const bool allowed = modifier != '+' || type == TokenType::kBlockEnd;
  const size_t mark = pos_ + (modifier != '\0' ? 1 : 0);
  if (!allowed || at(mark) != close || at(mark + 1) != '}') return false;
  push(type, pos_);
  if (type == TokenType::kBlockEnd) {
    pos_ = skip_block_end(pos_);
  } else {
    pos_ = modifier == '-' ? skip_spaces(mark + 2) : mark + 2;
  }
  line_starting_ = source_[pos_ - 1] == '\n';
  return true;
}

void Lexer::tag(TokenType end_type, char close) {
  const size_t begin = run_.position();
  while (run_.ok()) {
    pos_ = skip_spaces(pos_);
    if (pos_ >= source_.size()) return fail("unclosed tag", begin);
    if (tag_end(end_type, close)) return;
    token();
  }
}

void Lexer::token() {
  const char first = source_[pos_];
  const bool digit = first >= '0' && first <= '9';
  if (digit) return number();
  if (first == '\'' || first == '"') return string(first);
  const uint32_t point = strings::code_point_at(source_, pos_).value;
  if (first == '_' || strings::is_alpha(point)) return name();
  operator_token();
}

void Lexer::name() {
  const size_t begin = pos_;
  while (pos_ < source_.size()) {
    const auto point = strings::code_point_at(source_, pos_);
    if (point.value != '_' && !strings::is_alpha(point.value) && !strings::is_digit(point.value))
      break;
    pos_ += point.length;
  }
  push(TokenType::kName, begin).text = source_.substr(begin, pos_ - begin);
}

void Lexer::operator_token() {
  for (const std::string_view candidate : kOperators) {
    if (source_.substr(pos_, candidate.size()) != candidate) continue;
    const char byte = candidate.front();
    if (byte == '(' || byte == '[' || byte == '{')
      brackets_ += byte == '(' ? ')' : byte == '[' ? ']' : '}';
    if (byte == ')' || byte == ']' || byte == '}') {
      if (brackets_.empty() || brackets_.back() != byte)
        return fail(std::string("unexpected '") + byte + "'", pos_);
      brackets_.pop_back();
    }
    push(TokenType::kOperator, pos_).text = candidate;
    pos_ += candidate.size();
    return;
  }
  const size_t length = strings::code_point_at(source_, pos_).length;
  fail("unexpected character '" + std::string(source_.substr(pos_, length)) + "'", pos_);
}

void Lexer::string(char quote) {
  const size_t begin = pos_++;
  while (pos_ < source_.size() && source_[pos_] != quote) pos_ += source_[pos_] == '\\' ? 2 : 1;
  if (pos_ >= source_.size()) return fail("unclosed string", begin);
  run_.set_position(begin);
  const auto body = source_.substr(begin + 1, pos_ - begin - 1);
  push(TokenType::kString, begin).text = decode_string_literal(run_, body);
  ++pos_;
}

/// Digits with single underscores between them, from `pos` on; returns the end.
size_t digits_end(std::string_view source, size_t pos) {
  const auto digit = [&](size_t at) {
    return at < source.size() && source[at] >= '0' && source[at] <= '9';
  };
  while (digit(pos)) {
    ++pos;
    if (pos < source.size() && source[pos] == '_' && digit(pos + 1)) ++pos;
  }
  return pos;
}

std::string without_underscores(std::string_view text) {
  std::string out(text);
  out.erase(std::remove(out.begin(), out.end(), '_'), out.end());
  return out;
}

void Lexer::based_number(int base) {
  const size_t begin = pos_;
  pos_ += 2;
  std::string digits;
  const auto is_digit = [&](char byte) {
    const int value = byte >= '0' && byte <= '9'   ? byte - '0'
                      : byte >= 'a' && byte <= 'f' ? byte - 'a' + 10
                      : byte >= 'A' && byte <= 'F' ? byte - 'A' + 10
                                                   : base;
    return value < base;
  };
  while (is_digit(at(pos_)) || (at(pos_) == '_' && is_digit(at(pos_ + 1)))) {
    if (at(pos_) != '_') digits += at(pos_);
    ++pos_;
  }
  int64_t value = 0;
  const auto end = digits.data() + digits.size();
  if (digits.empty()) return fail("number without digits", begin);
  if (std::from_chars(digits.data(), end, value, base).ec != std::errc{}) {
    run_.set_position(begin);
    return run_.fail_unsupported("integer beyond 64 bits");
  }
  push(TokenType::kInteger, begin).integer = value;
}

void Lexer::number() {
  const size_t begin = pos_;
  const char mark = static_cast<char>(at(pos_ + 1) | 0x20);
  if (at(pos_) == '0' && (mark == 'x' || mark == 'o' || mark == 'b'))
    return based_number(mark == 'x' ? 16 : mark == 'o' ? 8 : 2);
  size_t end = digits_end(source_, pos_);
  bool is_float = false;
  const bool after_dot = begin > 0 && source_[begin - 1] == '.';  // x.0.1 are two subscripts
  if (!after_dot && at(end) == '.' && digits_end(source_, end + 1) > end + 1) {
    end = digits_end(source_, end + 1);
    is_float = true;
  }
  if (!after_dot && (at(end) == 'e' || at(end) == 'E')) {
    const size_t sign = at(end + 1) == '+' || at(end + 1) == '-' ? 1 : 0;
    const size_t exponent_end = digits_end(source_, end + 1 + sign);
    if (exponent_end > end + 1 + sign) {
      end = exponent_end;
      is_float = true;
    }
  }
  const std::string text = without_underscores(source_.substr(begin, end - begin));
  if (is_float) {
    pos_ = end;
    push(TokenType::kFloat, begin).real = std::strtod(text.c_str(), nullptr);
    return;
  }
  if (text.size() > 1 && text.find_first_not_of('0') != std::string::npos && text.front() == '0')
    return fail("integer with a leading zero", begin);
  pos_ = end;
  int64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc{}) {
    run_.set_position(begin);
    return run_.fail_unsupported("integer beyond 64 bits");
  }
  push(TokenType::kInteger, begin).integer = value;
}

}  // namespace

std::string normalize_source(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t pos = 0; pos < source.size(); ++pos) {
    const bool carriage_return = source[pos] == '\r';
    out += carriage_return ? '\n' : source[pos];
    if (carriage_return && pos + 1 < source.size() && source[pos + 1] == '\n') ++pos;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::vector<Token> tokenize(Run& run, std::string_view source) {
  return Lexer(run, source).tokenize();
}

}  // namespace tessera::jinja
