// SPDX-License-Identifier: Apache-2.0
// Expressions by recursive descent, from the loosest operator to the tightest.
#include <algorithm>
#include <array>

#include "text/jinja/parser.h"

namespace tessera::jinja {
namespace {

constexpr std::array<std::string_view, 6> kComparisons = {"==", "!=", "<", "<=", ">", ">="};

bool contains(const auto& list, std::string_view text) {
  return std::count(list.begin(), list.end(), text) > 0;
}

}  // namespace

ExprPtr Parser::node(ExprKind kind, size_t offset, std::string name) {
  auto result = std::make_unique<Expr>();
  result->kind = kind;
  result->offset = offset;
  result->name = std::move(name);
  return result;
}

void Parser::add(ExprPtr& parent, ExprPtr child) {
  if (child) parent->depth = std::max(parent->depth, child->depth + 1);
  run_.check_depth(parent->depth, run_.limits().tree_depth, "expression");
  parent->items.push_back(std::move(child));
}

ExprPtr Parser::binary(ExprKind kind, std::string name, size_t offset, ExprPtr left,
                       ExprPtr right) {
  ExprPtr result = node(kind, offset, std::move(name));
  add(result, std::move(left));
  add(result, std::move(right));
  return result;
}

ExprPtr Parser::tuple_item(Mode mode) {
  switch (mode) {
    case Mode::kFull: return expression();
    case Mode::kNoConditional: return or_expression();
    case Mode::kTargets: return primary();
    case Mode::kTargetsOrSlots: return primary(true);
  }
  return expression();
}

/// One expression, or several with commas: a tuple even without parentheses.
ExprPtr Parser::tuple(Mode mode, bool parenthesized, std::string_view end_word) {
  ExprPtr result = node(ExprKind::kTuple, current().offset);
  bool has_comma = false;
  while (run_.ok()) {
    const bool ends = current().type == TokenType::kVariableEnd ||
                      current().type == TokenType::kBlockEnd || is_operator(")") ||
                      (!end_word.empty() && is_name(end_word));
    if (ends) break;
    add(result, tuple_item(mode));
    if (!accept_operator(",")) break;
    has_comma = true;
  }
  if (has_comma) return result;
  if (!result->items.empty()) return std::move(result->items.front());
  if (!parenthesized) fail("expected an expression");
  return result;
}

ExprPtr Parser::expression() {
  ExprPtr value = or_expression();
  while (is_name("if")) {
    const size_t offset = next().offset;
    ExprPtr result = node(ExprKind::kConditional, offset);
    const DepthGuard guard(nesting_);
    if (!run_.check_depth(nesting_, run_.limits().parse_depth, "expression")) return value;
    const bool outer_soft = std::exchange(soft_, true);
    add(result, std::move(value));
    add(result, or_expression());
    add(result, accept_name("else") ? expression() : nullptr);
    soft_ = outer_soft;
    value = std::move(result);
  }
  return value;
}

ExprPtr Parser::or_expression() {
  ExprPtr left = and_expression();
  while (is_name("or")) {
    const size_t offset = next().offset;
    left = binary(ExprKind::kOr, {}, offset, std::move(left), and_expression());
  }
  return left;
}

ExprPtr Parser::and_expression() {
  ExprPtr left = not_expression();
  while (is_name("and")) {
    const size_t offset = next().offset;
    left = binary(ExprKind::kAnd, {}, offset, std::move(left), not_expression());
  }
  return left;
}

ExprPtr Parser::not_expression() {
  const DepthGuard guard(nesting_);
  if (!run_.check_depth(nesting_, run_.limits().parse_depth, "expression") || !is_name("not"))
    return comparison();
  ExprPtr result = node(ExprKind::kUnary, next().offset, "not");
  add(result, not_expression());
  return result;
}

ExprPtr Parser::comparison() {
  ExprPtr first = sum();
  ExprPtr result;
  while (run_.ok()) {
    std::string name;
    const size_t offset = current().offset;
    if (current().type == TokenType::kOperator && contains(kComparisons, current().text)) {
      name = next().text;
    } else if (accept_name("in")) {
      name = "in";
    } else if (is_name("not") && look_ahead().type == TokenType::kName &&
               look_ahead().text == "in") {
      next();
      next();
      name = "not in";
    } else {
      break;
    }
    if (!result) {
      result = node(ExprKind::kCompare, offset);
      add(result, std::move(first));
    }
    result->operators.push_back(std::move(name));
    add(result, sum());
  }
  return result ? std::move(result) : std::move(first);
}

ExprPtr Parser::sum() {
  ExprPtr left = concatenation();
  while (is_operator("+") || is_operator("-")) {
    const Token& token = next();
    left = binary(ExprKind::kBinary, token.text, token.offset, std::move(left), concatenation());
  }
  return left;
}

ExprPtr Parser::concatenation() {
  ExprPtr first = product();
  if (!is_operator("~")) return first;
  ExprPtr result = node(ExprKind::kConcat, current().offset);
  add(result, std::move(first));
  while (accept_operator("~")) add(result, product());
  return result;
}

ExprPtr Parser::product() {
  static constexpr std::array<std::string_view, 4> kOperators = {"*", "/", "//", "%"};
  ExprPtr left = power();
  while (current().type == TokenType::kOperator && contains(kOperators, current().text)) {
    const Token& token = next();
    left = binary(ExprKind::kBinary, token.text, token.offset, std::move(left), power());
  }
  return left;
}

ExprPtr Parser::power() {
  ExprPtr left = unary(true);
  while (is_operator("**")) {
    const Token& token = next();
    left = binary(ExprKind::kBinary, token.text, token.offset, std::move(left), unary(true));
  }
  return left;
}

ExprPtr Parser::unary(bool with_filters) {
  const DepthGuard guard(nesting_);
  if (!run_.check_depth(nesting_, run_.limits().parse_depth, "expression"))
    return node(ExprKind::kConstant, current().offset);
  ExprPtr result;
  if (is_operator("-") || is_operator("+")) {
    const Token& token = next();
    result = node(ExprKind::kUnary, token.offset, token.text);
    add(result, unary(false));
  } else {
    result = primary();
  }
  result = postfix(std::move(result));
  return with_filters ? filters_and_tests(std::move(result)) : std::move(result);
}

void Parser::note_special_name(std::string_view name) {
  if (macro_ == nullptr) return;
  if (name == "varargs") macro_->uses_varargs = true;
  if (name == "kwargs") macro_->uses_kwargs = true;
}

ExprPtr Parser::name_or_constant(bool with_slots) {
  const Token& token = next();
  ExprPtr result = node(ExprKind::kConstant, token.offset);
  if (token.text == "true" || token.text == "True" || token.text == "false" ||
      token.text == "False") {
    result->constant = Value::boolean(token.text == "true" || token.text == "True");
  } else if (token.text == "none" || token.text == "None") {
    result->constant = Value::none();
  } else if (with_slots && accept_operator(".")) {
    result->kind = ExprKind::kNamespaceSlot;
    result->name = token.text;
    result->operators.push_back(expect_name());
  } else {
    result->kind = ExprKind::kName;
    result->name = token.text;
    note_special_name(token.text);
  }
  return result;
}

ExprPtr Parser::primary(bool with_slots) {
  const Token& token = current();
  if (token.type == TokenType::kName) return name_or_constant(with_slots);
  ExprPtr result = node(ExprKind::kConstant, token.offset);
  if (token.type == TokenType::kString) {
    std::string text;
    while (current().type == TokenType::kString) text += next().text;
    result->constant = Value::literal(std::move(text));
  } else if (token.type == TokenType::kInteger) {
    result->constant = Value::integer(next().integer);
  } else if (token.type == TokenType::kFloat) {
    result->constant = Value::real(next().real);
  } else if (accept_operator("(")) {
    result = tuple(Mode::kFull, true);
    expect_operator(")");
  } else if (is_operator("[")) {
    result = list_literal();
  } else if (is_operator("{")) {
    result = dict_literal();
  } else {
    fail("expected an expression");
  }
  return result;
}

ExprPtr Parser::list_literal() {
  ExprPtr result = node(ExprKind::kList, next().offset);
  while (run_.ok() && !is_operator("]")) {
    if (!result->items.empty()) expect_operator(",");
    if (is_operator("]")) break;
    add(result, expression());
  }
  expect_operator("]");
  return result;
}

ExprPtr Parser::dict_literal() {
  ExprPtr result = node(ExprKind::kDict, next().offset);
  while (run_.ok() && !is_operator("}")) {
    if (!result->items.empty()) expect_operator(",");
    if (is_operator("}")) break;
    add(result, expression());
    expect_operator(":");
    add(result, expression());
  }
  expect_operator("}");
  return result;
}

}  // namespace tessera::jinja
