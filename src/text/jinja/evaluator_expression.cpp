// SPDX-License-Identifier: Apache-2.0
// Expressions: names, literals, operators, filters and tests.
#include "text/jinja/evaluator.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace tessera::jinja {

Value Evaluator::evaluate(const Expr& expr) {
  const DepthGuard guard(depth_);
  if (!run_.spend() || !run_.check_depth(depth_, run_.limits().eval_depth, "template")) return {};
  switch (expr.kind) {
    case ExprKind::kConstant: return expr.constant;
    case ExprKind::kName: return name(expr);
    case ExprKind::kPiped: return piped_;
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = evaluate(*expr.items[0]);
      const bool decided = left.truthy() == (expr.kind == ExprKind::kOr);
      return decided ? left : evaluate(*expr.items[1]);
    }
    case ExprKind::kConditional: return conditional(expr);
    default: return evaluate_operation(expr);
  }
}

Value Evaluator::evaluate_operation(const Expr& expr) {
  const auto operand = [&](size_t index) {
    Value value = evaluate(*expr.items[index]);
    run_.set_position(expr.offset);
    return value;
  };
  switch (expr.kind) {
    case ExprKind::kList: return make_list(run_, items(expr));
    case ExprKind::kTuple: return make_tuple(run_, items(expr));
    case ExprKind::kDict: return dict(expr);
    case ExprKind::kAttribute: {
      const Value container = operand(0);
      return run_.ok() ? attribute(run_, container, expr.name) : Value{};
    }
    case ExprKind::kSubscript: {
      const Value container = operand(0);
      const Value key = operand(1);
      return run_.ok() ? subscript(run_, container, key) : Value{};
    }
    case ExprKind::kSlice: return sliced(expr);
    case ExprKind::kCall: return call(expr);
    case ExprKind::kFilter: {
      const Value value = operand(0);
      const Arguments given = arguments(expr);
      return run_.ok() ? apply_filter(run_, expr.name, value, given) : Value{};
    }
    case ExprKind::kTest: {
      const Value value = operand(0);
      const Arguments given = arguments(expr);
      return Value::boolean(run_.ok() && apply_test(run_, expr.name, value, given));
    }
    case ExprKind::kUnary: return unary(expr);
    case ExprKind::kBinary: {
      const Value left = operand(0);
      const Value right = operand(1);
      return run_.ok() ? arithmetic(run_, expr.name, left, right) : Value{};
    }
    case ExprKind::kConcat: return concatenation(expr);
    case ExprKind::kCompare: return comparison(expr);
    default: return {};
  }
}

Value Evaluator::name(const Expr& expr) {
  if (const Value* local = scope_->find(expr.name)) return *local;
  if (const Value* given = context_.find(expr.name)) return *given;
  if (has_global(expr.name))
    return make_function(run_, {.type = Function::Type::kGlobal, .name = expr.name});
  return Value::undefined("'" + expr.name + "' is undefined");
}

List Evaluator::items(const Expr& expr) {
  List values;
  for (const ExprPtr& item : expr.items) {
    if (!run_.ok()) break;
    values.push_back(evaluate(*item));
  }
  return values;
}

Value Evaluator::dict(const Expr& expr) {
  Dict result;
  for (size_t index = 0; index + 1 < expr.items.size() && run_.ok(); index += 2) {
    const Value key = evaluate(*expr.items[index]);
    Value value = evaluate(*expr.items[index + 1]);
    if (run_.ok()) dict_set(run_, result, key, std::move(value));
  }
  return make_dict(run_, std::move(result));
}

Value Evaluator::concatenation(const Expr& expr) {
  std::string text;
  for (const ExprPtr& item : expr.items) {
    const std::string part = to_text(run_, evaluate(*item));
    if (!run_.allocate(part.size())) return {};
    text += part;
  }
  return Value::literal(std::move(text));
}

Value Evaluator::comparison(const Expr& expr) {
  Value left = evaluate(*expr.items[0]);
  for (size_t index = 0; index < expr.operators.size(); ++index) {
    Value right = evaluate(*expr.items[index + 1]);
    run_.set_position(expr.offset);
    if (!run_.ok()) return {};
    const std::string& operation = expr.operators[index];
    bool holds = false;
    if (operation == "==" || operation == "!=") {
      holds = equals(run_, left, right) == (operation == "==");
    } else if (operation == "in" || operation == "not in") {
      holds = contains(run_, right, left) == (operation == "in");
    } else {
      holds = ordered(run_, operation, left, right);
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Evaluator::conditional(const Expr& expr) {
  const bool holds = evaluate(*expr.items[1]).truthy();
  if (!run_.ok()) return {};
  if (holds) return evaluate(*expr.items[0]);
  if (expr.items[2]) return evaluate(*expr.items[2]);
  return Value::undefined("the condition is false and there is no else");
}

Value Evaluator::unary(const Expr& expr) {
  const Value operand = evaluate(*expr.items[0]);
  run_.set_position(expr.offset);
  if (!run_.ok()) return {};
  if (expr.name == "not") return Value::boolean(!operand.truthy());
  if (expr.name == "-") return negate(run_, operand);
  return operand.is(Kind::kFloat) ? operand : arithmetic(run_, "+", Value::integer(0), operand);
}

Value Evaluator::sliced(const Expr& expr) {
  const auto part = [&](size_t index) {
    return expr.items[index] ? evaluate(*expr.items[index]) : Value::none();
  };
  const Value container = part(0);
  const Value start = part(1);
  const Value stop = part(2);
  const Value step = part(3);
  run_.set_position(expr.offset);
  return run_.ok() ? slice(run_, container, start, stop, step) : Value{};
}

}  // namespace tessera::jinja
