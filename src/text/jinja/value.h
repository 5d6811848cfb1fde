// SPDX-License-Identifier: Apache-2.0
// Python-like values of the template language. Containers are immutable once made, so ownership
// has no cycles; the only mutable object, a namespace, belongs to the evaluator.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/run.h"

namespace tessera::jinja {

class Value;
class LoopState;
struct Closure;
using List = std::vector<Value>;

struct Undefined {
  std::shared_ptr<const std::string> reason{};  // what a use of it reports
};
struct NoneType {};
struct BigInteger {
  std::shared_ptr<const std::string> digits;  // an integer beyond 64 bits: printed, never computed
};
struct Sequence {
  List items;
  int depth;
};
struct Tuple {
  std::shared_ptr<const Sequence> items;
};
struct View {
  std::shared_ptr<const Sequence> items;
  const char* name;  // dict_keys, dict_values, dict_items
};
struct Range {
  int64_t start;
  int64_t stop;
  int64_t step;
  int64_t size() const;
};
/// A generator: what `map`, `select` or `items` return. Runs out after one pass.
struct Iterator {
  std::shared_ptr<const Sequence> items;
  size_t next = 0;
};
class Dict;
struct Namespace;
struct Function;

enum class Kind {  // in the order of Value::Storage
  kUndefined,
  kNone,
  kBool,
  kInt,
  kBigInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,
  kIterator,
  kNamespace,
  kLoop,
  kFunction,
};

class Value {
 public:
  using String = std::shared_ptr<const std::string>;
  using Storage = std::variant<Undefined, NoneType, bool, int64_t, BigInteger, double, String,
                               std::shared_ptr<const Sequence>, Tuple, std::shared_ptr<const Dict>,
                               Range, View, std::shared_ptr<Iterator>, Namespace*,
                               std::shared_ptr<LoopState>, std::shared_ptr<const Function>>;

  Value() = default;
  explicit Value(Storage storage) : storage_(std::move(storage)) {}
  static Value none() { return Value(Storage(NoneType{})); }
  static Value boolean(bool flag) { return Value(Storage(flag)); }
  static Value integer(int64_t number) { return Value(Storage(number)); }
  static Value real(double number) { return Value(Storage(number)); }
  static Value literal(std::string text);
  static Value undefined(std::string reason);

  Kind kind() const { return static_cast<Kind>(storage_.index()); }
  bool is(Kind kind_wanted) const { return kind() == kind_wanted; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_none() const { return is(Kind::kNone); }
  bool is_string() const { return is(Kind::kString); }

  template <class T>
  const T& get() const {
    return *std::get_if<T>(&storage_);
  }
  const std::string& text() const { return *get<String>(); }
  const List& items() const;  // of a list, tuple or view
  const Dict& dict() const { return *get<std::shared_ptr<const Dict>>(); }
  /// The integer of an int or a bool.
  std::optional<int64_t> as_integer() const;
  /// An int, bool or float as a double.
  std::optional<double> as_real() const;

  /// Why an undefined value is undefined.
  std::string undefined_reason() const;

  bool truthy() const;
  const char* type_name() const;  // as Python names it
  int depth() const;              // levels of containers below and including this value

 private:
  Storage storage_{};
};

/// Insertion-ordered map with Python's key equality (1, 1.0 and True are one key).
class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }
  const Value* find(const std::string& key) const;
  const Value* find_hash(const std::string& hash) const;
  void set(std::string hash, Value key, Value value);

 private:
  std::vector<Entry> entries_{};
  std::map<std::string, size_t> index_{};  // by hash_key: logarithmic whatever the keys are
  int depth_ = 1;
};

struct Namespace {
  Dict values{};
};

struct Function {
  enum class Type { kMacro, kGlobal, kMethod };
  Type type;
  std::string name{};
  Value self{};                      // of a method
  const Closure* closure = nullptr;  // of a macro, owned by the evaluator
};

/// Canonical text of a hashable value; nothing (and a failed run) for lists, dicts and the like.
std::optional<std::string> hash_key(Run& run, const Value& value);

// Makers that respect the limits of the run; on failure they return undefined.
Value make_string(Run& run, std::string text);
Value make_list(Run& run, List items);
Value make_tuple(Run& run, List items);
Value make_view(Run& run, List items, const char* name);
Value make_iterator(Run& run, List items);
Value make_dict(Run& run, Dict dict);
Value make_function(Run& run, Function function);
void dict_set(Run& run, Dict& dict, const Value& key, Value value);

/// Pays for reading the whole of a string; other values pay item by item elsewhere.
bool spend_on(Run& run, const Value& value);

/// Remaining items of anything iterable; consumes iterators. Fails the run otherwise.
List iterate(Run& run, const Value& value);

}  // namespace tessera::jinja
