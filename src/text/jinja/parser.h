// SPDX-License-Identifier: Apache-2.0
// Tokens to a syntax tree, with the grammar of Jinja; tags it cannot run are refused by name.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace tessera::jinja {

class Parser {
 public:
  Parser(Run& run, std::vector<Token> tokens) : run_(run), tokens_(std::move(tokens)) {}

  Block parse();

 private:
  // Statements (parser.cpp).
  Block statements(std::initializer_list<std::string_view> end_tags);
  Block body(std::initializer_list<std::string_view> end_tags);
  Block last_body(std::string_view end_tag);
  Statement statement();
  Statement if_statement();
  Statement for_statement();
  Statement set_statement();
  Statement macro_statement();
  Statement with_statement();
  Statement generation_statement();
  Statement filter_statement();
  Statement jump_statement();
  void macro_signature(Macro& macro);
  ExprPtr target(bool with_namespace, bool stops_at_in);

  // Expressions (parser_expression.cpp).
  enum class Mode { kFull, kNoConditional, kTargets, kTargetsOrSlots };
  ExprPtr tuple(Mode mode, bool parenthesized = false, std::string_view end_word = {});
  ExprPtr tuple_item(Mode mode);
  ExprPtr expression();
  ExprPtr or_expression();
  ExprPtr and_expression();
  ExprPtr not_expression();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary(bool with_slots = false);
  ExprPtr name_or_constant(bool with_slots);
  ExprPtr list_literal();
  ExprPtr dict_literal();
  ExprPtr postfix(ExprPtr operand);
  ExprPtr filters_and_tests(ExprPtr operand);
  ExprPtr filter_chain(ExprPtr operand, bool starts_inside = false);
  ExprPtr test(ExprPtr operand);
  ExprPtr subscript(ExprPtr operand);
  ExprPtr subscript_part();
  ExprPtr slice(ExprPtr start, size_t offset);
  ExprPtr call(ExprPtr callee);
  void call_arguments(Expr& node);
  void call_argument(Expr& node);
  std::string dotted_name();
  void note_special_name(std::string_view name);

  // Tree building: these keep `depth` right and within limits.
  ExprPtr node(ExprKind kind, size_t offset, std::string name = {});
  void add(ExprPtr& parent, ExprPtr child);
  ExprPtr binary(ExprKind kind, std::string name, size_t offset, ExprPtr left, ExprPtr right);

  // Tokens. After a failure everything looks like the end of the template.
  const Token& current() const { return run_.ok() ? tokens_[index_] : tokens_.back(); }
  const Token& look_ahead() const;
  const Token& next();
  bool is_operator(std::string_view text) const;
  bool is_name(std::string_view text) const;
  bool accept_operator(std::string_view text);
  bool accept_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect(TokenType type);
  std::string expect_name();
  void fail(std::string what);

  Run& run_;
  std::vector<Token> tokens_;
  size_t index_ = 0;
  int nesting_ = 0;         // of brackets, prefix operators and blocks
  int loops_ = 0;           // open for-loops that a break may leave
  bool soft_ = false;       // inside a condition: unknown filters only matter when reached
  Macro* macro_ = nullptr;  // the innermost open macro
};

}  // namespace tessera::jinja
