// SPDX-License-Identifier: Apache-2.0
// Statements: if, for, set, macro, with, filter and generation blocks, break and continue.
#include "text/jinja/parser.h"

#include <algorithm>
#include <array>

namespace tessera::jinja {
namespace {

/// Restores a variable at the end of a scope.
template <class T>
class Saved {
 public:
  Saved(T& variable, T value) : variable_(variable), old_(variable) { variable = value; }
  ~Saved() { variable_ = old_; }
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;

 private:
  T& variable_;
  T old_;
};

constexpr std::array<std::string_view, 9> kRefusedTags = {
    "block", "call", "extends", "from", "import", "include", "autoescape", "do", "print"};

std::string describe(const Token& token) {
  switch (token.type) {
    case TokenType::kData: return "template text";
    case TokenType::kVariableBegin: return "'{{'";
    case TokenType::kVariableEnd: return "'}}'";
    case TokenType::kBlockBegin: return "'{%'";
    case TokenType::kBlockEnd: return "'%}'";
    case TokenType::kString: return "a string";
    case TokenType::kInteger:
    case TokenType::kFloat: return "a number";
    case TokenType::kEnd: return "the end of the template";
    default: return "'" + token.text + "'";
  }
}

}  // namespace

void Parser::fail(std::string what) {
  if (!run_.ok()) return;
  run_.set_position(current().offset);
  run_.fail_syntax(std::move(what), describe(current()));
}

const Token& Parser::look_ahead() const {
  return run_.ok() ? tokens_[std::min(index_ + 1, tokens_.size() - 1)] : tokens_.back();
}

const Token& Parser::next() {
  const Token& token = current();
  if (token.type != TokenType::kEnd) ++index_;
  return token;
}

bool Parser::is_operator(std::string_view text) const {
  return current().type == TokenType::kOperator && current().text == text;
}

bool Parser::is_name(std::string_view text) const {
  return current().type == TokenType::kName && current().text == text;
}

bool Parser::accept_operator(std::string_view text) {
  const bool found = is_operator(text);
  if (found) next();
  return found;
}

bool Parser::accept_name(std::string_view text) {
  const bool found = is_name(text);
  if (found) next();
  return found;
}

void Parser::expect_operator(std::string_view text) {
  if (!accept_operator(text)) fail("expected '" + std::string(text) + "'");
}

void Parser::expect(TokenType type) {
  if (current().type != type) return fail("expected " + describe({.type = type}));
  next();
}

std::string Parser::expect_name() {
  if (current().type == TokenType::kName) return next().text;
  fail("expected a name");
  return {};
}

Block Parser::parse() {
  Block block = statements({});
  if (run_.ok() && current().type != TokenType::kEnd) fail("unexpected tag");
  return block;
}

/// Up to the first of `end_tags`, whose name becomes the current token.
Block Parser::statements(std::initializer_list<std::string_view> end_tags) {
  const DepthGuard guard(nesting_);
  Block block;
  if (!run_.check_depth(nesting_, run_.limits().parse_depth, "blocks")) return block;
  while (current().type != TokenType::kEnd) {
    const Token& token = next();
    if (token.type == TokenType::kData) {
      block.push_back({.offset = token.offset, .text = token.text});
    } else if (token.type == TokenType::kVariableBegin) {
      Statement print{.kind = StatementKind::kPrint, .offset = token.offset};
      print.value = tuple(Mode::kFull);
      expect(TokenType::kVariableEnd);
      block.push_back(std::move(print));
    } else {
      const auto ends = [this](std::string_view tag) { return is_name(tag); };
      if (std::any_of(end_tags.begin(), end_tags.end(), ends)) return block;
      block.push_back(statement());
      expect(TokenType::kBlockEnd);
    }
  }
  if (end_tags.size() > 0) fail("missing {% " + std::string(*(end_tags.end() - 1)) + " %}");
  return block;
}

Block Parser::body(std::initializer_list<std::string_view> end_tags) {
  accept_operator(":");
  expect(TokenType::kBlockEnd);
  return statements(end_tags);
}

Block Parser::last_body(std::string_view end_tag) {
  Block block = body({end_tag});
  next();
  return block;
}

Statement Parser::statement() {
  const Token& tag = current();
  if (tag.type != TokenType::kName) {
    fail("expected a tag name");
    return {};
  }
  next();
  run_.set_position(tag.offset);
  Statement result;
  if (tag.text == "if") {
    result = if_statement();
  } else if (tag.text == "for") {
    result = for_statement();
  } else if (tag.text == "set") {
    result = set_statement();
  } else if (tag.text == "macro") {
    result = macro_statement();
  } else if (tag.text == "with") {
    result = with_statement();
  } else if (tag.text == "generation") {
    result = generation_statement();
  } else if (tag.text == "filter") {
    result = filter_statement();
  } else if (tag.text == "break" || tag.text == "continue") {
    --index_;
    result = jump_statement();
  } else if (std::count(kRefusedTags.begin(), kRefusedTags.end(), tag.text) > 0) {
    run_.fail_unsupported("the tag {% " + tag.text + " %}");
  } else {
    run_.fail_syntax("unknown tag", tag.text);
  }
  result.offset = tag.offset;
  return result;
}

Statement Parser::if_statement() {
  Statement result{.kind = StatementKind::kIf};
  const Saved soft(soft_, true);
  while (run_.ok()) {
    ExprPtr condition = tuple(Mode::kNoConditional);
    Block block = body({"elif", "else", "endif"});
    result.branches.emplace_back(std::move(condition), std::move(block));
    const std::string& tag = next().text;
    if (tag == "elif") continue;
    if (tag == "else") result.else_body = last_body("endif");
    break;
  }
  return result;
}

Statement Parser::for_statement() {
  Statement result{.kind = StatementKind::kFor};
  result.target = target(false, true);
  if (!accept_name("in")) fail("expected 'in'");
  result.value = tuple(Mode::kNoConditional, false, "recursive");
  const Saved soft(soft_, false);
  if (accept_name("if")) result.filter = expression();
  if (is_name("recursive")) run_.fail_unsupported("recursive loops");
  {
    const Saved loops(loops_, loops_ + 1);
    result.body = body({"endfor", "else"});
  }
  if (next().text == "else") result.else_body = last_body("endfor");
  return result;
}

Statement Parser::set_statement() {
  Statement result{.kind = StatementKind::kSet};
  result.target = target(true, false);
  if (accept_operator("=")) {
    result.value = tuple(Mode::kFull);
    return result;
  }
  result.kind = StatementKind::kSetBlock;
  const Saved soft(soft_, false);
  result.value = filter_chain(node(ExprKind::kPiped, current().offset));
  result.body = last_body("endset");
  return result;
}

Statement Parser::macro_statement() {
  Statement result{.kind = StatementKind::kMacro};
  result.macro = std::make_unique<Macro>();
  result.macro->name = expect_name();
  const Saved soft(soft_, false);
  const Saved loops(loops_, 0);
  const Saved macro(macro_, result.macro.get());
  macro_signature(*result.macro);
  result.macro->body = last_body("endmacro");
  return result;
}

void Parser::macro_signature(Macro& macro) {
  expect_operator("(");
  while (run_.ok() && !is_operator(")")) {
    if (!macro.parameters.empty()) expect_operator(",");
    macro.parameters.push_back(expect_name());
    if (accept_operator("=")) {
      macro.defaults.push_back(expression());
    } else if (!macro.defaults.empty()) {
      fail("parameter without a default after one with a default");
    }
  }
  expect_operator(")");
}

Statement Parser::with_statement() {
  Statement result{.kind = StatementKind::kScope};
  const Saved soft(soft_, false);
  while (run_.ok() && current().type != TokenType::kBlockEnd) {
    if (!result.locals.empty()) expect_operator(",");
    std::string name = expect_name();
    expect_operator("=");
    result.locals.emplace_back(std::move(name), expression());
  }
  result.body = last_body("endwith");
  return result;
}

/// {% generation %} only marks text for training; its variables are local, as in a call block.
Statement Parser::generation_statement() {
  Statement result{.kind = StatementKind::kScope};
  const Saved soft(soft_, false);
  const Saved loops(loops_, 0);
  result.body = last_body("endgeneration");
  return result;
}

Statement Parser::filter_statement() {
  Statement result{.kind = StatementKind::kFilterBlock};
  const Saved soft(soft_, false);
  result.value = filter_chain(node(ExprKind::kPiped, current().offset), true);
  result.body = last_body("endfilter");
  return result;
}

Statement Parser::jump_statement() {
  const bool is_break = next().text == "break";
  if (loops_ == 0) run_.fail_syntax("break or continue outside of a loop");
  return {.kind = is_break ? StatementKind::kBreak : StatementKind::kContinue};
}

ExprPtr Parser::target(bool with_namespace, bool stops_at_in) {
  const size_t offset = current().offset;
  ExprPtr result = tuple(with_namespace ? Mode::kTargetsOrSlots : Mode::kTargets, false,
                         stops_at_in ? std::string_view("in") : std::string_view());
  std::vector<const Expr*> pending = {result.get()};
  while (!pending.empty()) {
    const Expr* item = pending.back();
    pending.pop_back();
    if (item->kind == ExprKind::kTuple) {
      for (const ExprPtr& child : item->items) pending.push_back(child.get());
    } else if (stops_at_in && item->name == "loop") {
      run_.fail_syntax("a for-loop cannot assign to 'loop'");
    } else if (item->kind != ExprKind::kName && item->kind != ExprKind::kNamespaceSlot) {
      run_.set_position(offset);
      run_.fail_syntax("cannot assign to this expression");
    }
  }
  return result;
}

}  // namespace tessera::jinja
