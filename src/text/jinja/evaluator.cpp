// SPDX-License-Identifier: Apache-2.0
// Statements: output, branches, loops, assignments and blocks that capture their text.
#include "text/jinja/evaluator.h"

#include "text/jinja/print.h"

namespace tessera::jinja {

std::string Evaluator::render(const Block& block) {
  run_block(block);
  return std::move(output_);
}

void Evaluator::emit(std::string_view text) {
  if (!run_.ok()) return;
  const size_t limit = run_.limits().output_bytes;
  if (text.size() > limit - output_.size())
    return run_.fail({.code = Errc::kUnsupported,
                      .what = "the rendered text is too long",
                      .expected = "at most " + std::to_string(limit) + " bytes"});
  output_ += text;
}

Evaluator::Flow Evaluator::run_block(const Block& block) {
  const DepthGuard guard(depth_);
  if (!run_.check_depth(depth_, run_.limits().eval_depth, "template")) return Flow::kNext;
  for (const Statement& statement : block) {
    run_.set_position(statement.offset);
    if (!run_.spend()) break;
    const Flow flow = run_statement(statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_statement(const Statement& statement) {
  switch (statement.kind) {
    case StatementKind::kText: emit(statement.text); break;
    case StatementKind::kPrint: emit(to_text(run_, evaluate(*statement.value))); break;
    case StatementKind::kSet: assign(*statement.target, evaluate(*statement.value)); break;
    case StatementKind::kMacro: define_macro(*statement.macro); break;
    case StatementKind::kIf: return run_if(statement);
    case StatementKind::kFor: return run_for(statement);
    case StatementKind::kScope: return run_scope(statement);
    case StatementKind::kSetBlock:
    case StatementKind::kFilterBlock: return run_captured(statement);
    case StatementKind::kBreak: return Flow::kBreak;
    case StatementKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_if(const Statement& statement) {
  for (const auto& [condition, block] : statement.branches) {
    const bool holds = evaluate(*condition).truthy();
    if (!run_.ok()) return Flow::kNext;
    if (holds) return run_block(block);
  }
  return run_block(statement.else_body);
}

bool Evaluator::accepts(const Statement& statement, const std::shared_ptr<Scope>& outer,
                        const Value& item) {
  const auto caller_scope = std::exchange(scope_, std::make_shared<Scope>(outer));
  run_.spend();
  assign(*statement.target, item);
  const bool accepted = evaluate(*statement.filter).truthy();
  scope_ = caller_scope;
  return accepted || !run_.ok();
}

std::shared_ptr<LoopState> Evaluator::start_loop(const Statement& statement) {
  const Value iterable = evaluate(*statement.value);
  run_.set_position(statement.offset);
  const bool one_pass = iterable.is(Kind::kIterator);
  const Value source =
      one_pass || !run_.ok() ? iterable : make_iterator(run_, iterate(run_, iterable));
  if (!run_.ok()) return nullptr;
  LoopState::Filter filter;
  if (statement.filter)
    filter = [this, &statement, outer = scope_](const Value& item) {
      return accepts(statement, outer, item);
    };
  const bool has_length = !one_pass && !statement.filter;
  return std::make_shared<LoopState>(source.get<std::shared_ptr<Iterator>>(), std::move(filter),
                                     has_length);
}

Evaluator::Flow Evaluator::run_for(const Statement& statement) {
  const auto loop = start_loop(statement);
  if (!loop) return Flow::kNext;
  const auto outer = scope_;
  // As in Jinja the else block runs unless some iteration got to its end.
  bool completed_one = false;
  while (run_.spend() && loop->advance() && run_.ok()) {
    scope_ = std::make_shared<Scope>(outer);
    scope_->set("loop", Value(Value::Storage(loop)));
    assign(*statement.target, loop->current());
    const Flow flow = run_block(statement.body);
    scope_ = outer;
    if (flow == Flow::kBreak) break;
    completed_one = completed_one || flow == Flow::kNext;
  }
  if (completed_one || statement.else_body.empty() || !run_.ok()) return Flow::kNext;
  scope_ = std::make_shared<Scope>(outer);
  const Flow flow = run_block(statement.else_body);
  scope_ = outer;
  return flow;
}

Evaluator::Flow Evaluator::run_scope(const Statement& statement) {
  const auto outer = scope_;
  const auto inner = std::make_shared<Scope>(outer);
  for (const auto& [local, expr] : statement.locals) inner->set(local, evaluate(*expr));
  scope_ = inner;
  const Flow flow = run_block(statement.body);
  scope_ = outer;
  return flow;
}

/// {% set x %} and {% filter f %}: the text of the body goes through the filter chain.
Evaluator::Flow Evaluator::run_captured(const Statement& statement) {
  const auto outer = std::exchange(scope_, std::make_shared<Scope>(scope_));
  std::string before = std::exchange(output_, {});
  const Flow flow = run_block(statement.body);
  scope_ = outer;
  std::string captured = std::exchange(output_, std::move(before));
  if (flow != Flow::kNext || !run_.ok()) return flow;
  const Value outer_piped = std::exchange(piped_, make_string(run_, std::move(captured)));
  Value result = evaluate(*statement.value);
  piped_ = outer_piped;
  if (statement.kind == StatementKind::kSetBlock) {
    assign(*statement.target, std::move(result));
  } else {
    emit(to_text(run_, result));
  }
  return Flow::kNext;
}

void Evaluator::assign(const Expr& target, Value value) {
  if (!run_.ok()) return;
  run_.set_position(target.offset);
  if (target.kind == ExprKind::kName) {
    scope_->set(target.name, std::move(value));
  } else if (target.kind == ExprKind::kNamespaceSlot) {
    const Value* holder = scope_->find(target.name);
    if (holder == nullptr) holder = context_.find(target.name);
    if (holder == nullptr || !holder->is(Kind::kNamespace))
      return run_.fail_type("cannot assign attribute on non-namespace object '" + target.name +
                            "'");
    const std::string& attribute_name = target.operators.front();
    holder->get<Namespace*>()->values.set("s" + attribute_name, Value::literal(attribute_name),
                                          std::move(value));
  } else {
    const List parts = iterate(run_, value);
    if (run_.ok() && parts.size() != target.items.size())
      return run_.fail({.code = Errc::kInvalidArgument,
                        .what = "wrong number of values to unpack",
                        .expected = std::to_string(target.items.size()),
                        .found = std::to_string(parts.size())});
    for (size_t index = 0; index < target.items.size() && run_.ok(); ++index)
      assign(*target.items[index], parts[index]);
  }
}

void Evaluator::define_macro(const Macro& macro) {
  if (!run_.allocate(sizeof(Closure))) return;
  closures_.push_back({&macro, scope_});
  scope_->set(macro.name, make_function(run_, {.type = Function::Type::kMacro,
                                               .name = macro.name,
                                               .closure = &closures_.back()}));
}

}  // namespace tessera::jinja
