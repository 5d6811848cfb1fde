// SPDX-License-Identifier: Apache-2.0
// Walks the syntax tree of a template and collects its output.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "text/jinja/builtins.h"
#include "text/jinja/loop.h"
#include "text/jinja/scope.h"

namespace tessera::jinja {

class Evaluator {
 public:
  Evaluator(Run& run, const Surroundings& surroundings, const Dict& context)
      : run_(run), surroundings_(surroundings), context_(context) {}

  /// The text of the template; meaningless when the run has failed.
  std::string render(const Block& block);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Statements (evaluator.cpp).
  Flow run_block(const Block& block);
  Flow run_statement(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_for(const Statement& statement);
  Flow run_scope(const Statement& statement);
  Flow run_captured(const Statement& statement);
  std::shared_ptr<LoopState> start_loop(const Statement& statement);
  bool accepts(const Statement& statement, const std::shared_ptr<Scope>& outer, const Value& item);
  void assign(const Expr& target, Value value);
  void define_macro(const Macro& macro);
  void emit(std::string_view text);

  // Expressions (evaluator_expression.cpp).
  Value evaluate(const Expr& expr);
  Value evaluate_operation(const Expr& expr);
  Value name(const Expr& expr);
  List items(const Expr& expr);
  Value dict(const Expr& expr);
  Value concatenation(const Expr& expr);
  Value comparison(const Expr& expr);
  Value conditional(const Expr& expr);
  Value unary(const Expr& expr);
  Value sliced(const Expr& expr);

  // Calls (evaluator_call.cpp).
  Arguments arguments(const Expr& expr);
  Value call(const Expr& expr);
  Value call_function(const Function& function, const Arguments& arguments);
  Value call_macro(const Closure& closure, const Arguments& arguments);
  void bind_parameters(const Macro& macro, const Arguments& arguments);
  Value make_namespace(const Arguments& arguments);

  Run& run_;
  const Surroundings& surroundings_;
  const Dict& context_;
  std::deque<Namespace> namespaces_{};
  std::deque<Closure> closures_{};
  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>(nullptr);
  std::string output_{};
  Value piped_{};  // what the filter chain of a block works on
  int depth_ = 0;
};

}  // namespace tessera::jinja
