// SPDX-License-Identifier: Apache-2.0
// The parsed template: expressions and statements.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace tessera::jinja {

struct Expr;
struct Statement;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<Statement>;

enum class ExprKind {
  kConstant,
  kName,
  kPiped,  // what a filter chain without an operand of its own works on
  kList,
  kTuple,
  kDict,       // items: key, value, key, value, ...
  kAttribute,  // items[0].name
  kSubscript,  // items[0][items[1]]
  kSlice,      // items[0][items[1]:items[2]:items[3]], absent parts are null
  kCall,       // items[0](items[1..], keywords)
  kFilter,     // items[0] | name(items[1..], keywords)
  kTest,       // items[0] is name(items[1..], keywords)
  kUnary,      // name is "-", "+" or "not"
  kBinary,     // name is the operator
  kConcat,     // items joined by ~
  kCompare,    // items[0] operators[0] items[1] operators[1] items[2] ...
  kAnd,
  kOr,
  kConditional,    // items[0] if items[1] else items[2] (may be null)
  kNamespaceSlot,  // assignment target items: name = namespace variable, operators[0] = attribute
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  size_t offset = 0;
  int depth = 1;  // levels of the tree below and including this node
  std::string name{};
  Value constant{};
  std::vector<ExprPtr> items{};
  std::vector<std::pair<std::string, ExprPtr>> keywords{};
  std::vector<std::string> operators{};
  ExprPtr star_items{};     // f(*items)
  ExprPtr star_keywords{};  // f(**keywords)
};

struct Macro {
  std::string name{};
  std::vector<std::string> parameters{};
  std::vector<ExprPtr> defaults{};  // of the last parameters
  bool uses_varargs = false;
  bool uses_kwargs = false;
  Block body;  // no initialiser: Statement is still incomplete here
};

enum class StatementKind {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,  // {% set x %}...{% endset %}
  kMacro,
  kScope,        // {% with %}, {% generation %}
  kFilterBlock,  // {% filter upper %}...{% endfilter %}
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  size_t offset = 0;
  std::string text{};
  ExprPtr target{};
  ExprPtr value{};   // printed, assigned, iterated over; the filter chain of a block
  ExprPtr filter{};  // the `if` of a for-loop
  std::vector<std::pair<ExprPtr, Block>> branches{};      // if and elif
  std::vector<std::pair<std::string, ExprPtr>> locals{};  // of {% with %}
  Block body{};
  Block else_body{};
  std::unique_ptr<Macro> macro{};
};

}  // namespace tessera::jinja
