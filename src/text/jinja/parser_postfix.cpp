// SPDX-License-Identifier: Apache-2.0
// What may follow an operand: attributes, subscripts, calls, filters and tests.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/parser.h"

namespace tessera::jinja {

ExprPtr Parser::postfix(ExprPtr operand) {
  while (run_.ok()) {
    if (is_operator(".") || is_operator("[")) {
      operand = subscript(std::move(operand));
    } else if (is_operator("(")) {
      operand = call(std::move(operand));
    } else {
      break;
    }
  }
  return operand;
}

ExprPtr Parser::filters_and_tests(ExprPtr operand) {
  while (run_.ok()) {
    if (is_operator("|")) {
      operand = filter_chain(std::move(operand));
    } else if (is_name("is")) {
      operand = test(std::move(operand));
    } else if (is_operator("(")) {
      operand = call(std::move(operand));
    } else {
      break;
    }
  }
  return operand;
}

std::string Parser::dotted_name() {
  std::string name = expect_name();
  while (accept_operator(".")) name += "." + expect_name();
  return name;
}

ExprPtr Parser::filter_chain(ExprPtr operand, bool starts_inside) {
  while (starts_inside || accept_operator("|")) {
    starts_inside = false;
    ExprPtr result = node(ExprKind::kFilter, current().offset);
    result->name = dotted_name();
    add(result, std::move(operand));
    if (is_operator("(")) call_arguments(*result);
    if (run_.ok() && !soft_ && !has_filter(result->name)) {
      run_.set_position(result->offset);
      run_.fail_unsupported("the filter '" + result->name + "'");
    }
    operand = std::move(result);
  }
  return operand;
}

ExprPtr Parser::test(ExprPtr operand) {
  const size_t offset = next().offset;
  const bool negated = accept_name("not");
  ExprPtr result = node(ExprKind::kTest, offset);
  result->name = dotted_name();
  add(result, std::move(operand));
  const TokenType type = current().type;
  const bool literal =
      type == TokenType::kString || type == TokenType::kInteger || type == TokenType::kFloat;
  const bool name =
      type == TokenType::kName && !is_name("else") && !is_name("or") && !is_name("and");
  if (is_operator("(")) {
    call_arguments(*result);
  } else if (is_name("is")) {
    fail("tests cannot be chained");
  } else if (literal || name || is_operator("[") || is_operator("{")) {
    add(result, postfix(primary()));
  }
  if (run_.ok() && !soft_ && !has_test(result->name)) {
    run_.set_position(offset);
    run_.fail_unsupported("the test '" + result->name + "'");
  }
  if (!negated) return result;
  ExprPtr negation = node(ExprKind::kUnary, offset, "not");
  add(negation, std::move(result));
  return negation;
}

ExprPtr Parser::subscript(ExprPtr operand) {
  const Token& open = next();
  if (open.text == ".") {
    if (current().type == TokenType::kName) {
      ExprPtr result = node(ExprKind::kAttribute, open.offset, next().text);
      add(result, std::move(operand));
      return result;
    }
    if (current().type != TokenType::kInteger) fail("expected a name or a number");
    ExprPtr index = node(ExprKind::kConstant, current().offset);
    index->constant = Value::integer(next().integer);
    return binary(ExprKind::kSubscript, {}, open.offset, std::move(operand), std::move(index));
  }
  ExprPtr parts = node(ExprKind::kTuple, open.offset);
  while (run_.ok() && !is_operator("]")) {
    if (!parts->items.empty()) expect_operator(",");
    add(parts, subscript_part());
  }
  expect_operator("]");
  const bool single = parts->items.size() == 1;
  if (single && parts->items.front()->kind == ExprKind::kSlice) {
    ExprPtr result = std::move(parts->items.front());
    result->depth = std::max(result->depth, operand->depth + 1);
    run_.check_depth(result->depth, run_.limits().tree_depth, "expression");
    result->items.front() = std::move(operand);
    return result;
  }
  for (const ExprPtr& part : parts->items)
    if (part->kind == ExprKind::kSlice && run_.ok()) run_.fail_unsupported("a tuple of slices");
  ExprPtr index = single ? std::move(parts->items.front()) : std::move(parts);
  return binary(ExprKind::kSubscript, {}, open.offset, std::move(operand), std::move(index));
}

ExprPtr Parser::subscript_part() {
  const size_t offset = current().offset;
  if (is_operator(":")) return slice(nullptr, offset);
  ExprPtr start = expression();
  return is_operator(":") ? slice(std::move(start), offset) : std::move(start);
}

/// From the first colon on; items[0] is left for the sliced operand.
ExprPtr Parser::slice(ExprPtr start, size_t offset) {
  const auto at_end = [this] { return is_operator("]") || is_operator(",") || is_operator(":"); };
  ExprPtr result = node(ExprKind::kSlice, offset);
  add(result, nullptr);
  add(result, std::move(start));
  expect_operator(":");
  add(result, at_end() ? nullptr : expression());
  const bool has_step = accept_operator(":");
  add(result, has_step && !at_end() ? expression() : nullptr);
  return result;
}

ExprPtr Parser::call(ExprPtr callee) {
  ExprPtr result = node(ExprKind::kCall, current().offset);
  add(result, std::move(callee));
  call_arguments(*result);
  return result;
}

void Parser::call_arguments(Expr& target_node) {
  expect_operator("(");
  bool first = true;
  while (run_.ok() && !is_operator(")")) {
    if (!first) expect_operator(",");
    if (!first && is_operator(")")) break;
    first = false;
    call_argument(target_node);
  }
  expect_operator(")");
  run_.check_depth(target_node.depth, run_.limits().tree_depth, "expression");
}

void Parser::call_argument(Expr& target_node) {
  const auto deepen = [&](ExprPtr value) {
    target_node.depth = std::max(target_node.depth, value->depth + 1);
    return value;
  };
  if (accept_operator("*")) {
    if (target_node.star_items || target_node.star_keywords) fail("misplaced '*' argument");
    target_node.star_items = deepen(expression());
  } else if (accept_operator("**")) {
    if (target_node.star_keywords) fail("misplaced '**' argument");
    target_node.star_keywords = deepen(expression());
  } else if (current().type == TokenType::kName && look_ahead().type == TokenType::kOperator &&
             look_ahead().text == "=") {
    if (target_node.star_keywords) fail("misplaced keyword argument");
    std::string name = next().text;
    next();
    target_node.keywords.emplace_back(std::move(name), deepen(expression()));
  } else {
    if (target_node.star_items || target_node.star_keywords || !target_node.keywords.empty())
      fail("positional argument after a keyword argument");
    target_node.items.push_back(deepen(expression()));
  }
}

}  // namespace tessera::jinja
