// SPDX-License-Identifier: Apache-2.0
// Construction within limits, truth, depth and hashing of template values.
#include "text/jinja/value.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "text/jinja/loop.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

// What a string and a dict entry really take, with their control blocks and tree nodes.
constexpr uint64_t kStringBytes = 96;
constexpr uint64_t kEntryBytes = 256;
constexpr double kInt64Bound = 9223372036854775808.0;  // 2^63

std::shared_ptr<const Sequence> make_sequence(Run& run, List items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  run.allocate(items.size() * sizeof(Value));
  if (!run.check_depth(depth + 1, run.limits().value_depth, "value")) items.clear();
  return std::make_shared<const Sequence>(Sequence{std::move(items), depth + 1});
}

std::string hash_real(double number) {
  if (std::floor(number) != number || std::isinf(number)) {
    std::array<char, 40> buffer{};
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
    return "f" + std::string(buffer.data(), end.ptr);
  }
  if (number >= -kInt64Bound && number < kInt64Bound)
    return "i" + std::to_string(static_cast<int64_t>(number));
  std::array<char, 320> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), number, std::chars_format::fixed);
  return "i" + std::string(buffer.data(), end.ptr);
}

std::optional<std::string> hash_tuple(Run& run, const Value& value) {
  std::string text = "t";
  for (const Value& item : value.items()) {
    const auto part = hash_key(run, item);
    if (!part) return std::nullopt;
    text += std::to_string(part->size()) + ':' + *part;
  }
  return text;
}

List range_items(Run& run, const Range& range) {
  List items;
  const int64_t count = range.size();
  if (!run.spend(static_cast<uint64_t>(count))) return items;
  items.reserve(static_cast<size_t>(count));
  for (int64_t index = 0; index < count; ++index)
    items.push_back(Value::integer(range.start + index * range.step));
  return items;
}

List string_items(Run& run, const std::string& text) {
  List items;
  if (!run.spend(text.size())) return items;
  for (size_t pos = 0; pos < text.size();) {
    const size_t length = strings::code_point_at(text, pos).length;
    items.push_back(make_string(run, text.substr(pos, length)));
    pos += length;
  }
  return items;
}

}  // namespace

int64_t Range::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

Value Value::literal(std::string text) {
  return Value(Storage(std::make_shared<const std::string>(std::move(text))));
}

Value Value::undefined(std::string reason) {
  return Value(Storage(Undefined{std::make_shared<const std::string>(std::move(reason))}));
}

const List& Value::items() const {
  if (is(Kind::kTuple)) return get<Tuple>().items->items;
  if (is(Kind::kView)) return get<View>().items->items;
  return get<std::shared_ptr<const Sequence>>()->items;
}

std::optional<int64_t> Value::as_integer() const {
  if (is(Kind::kInt)) return get<int64_t>();
  if (is(Kind::kBool)) return get<bool>() ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::as_real() const {
  if (is(Kind::kFloat)) return get<double>();
  const auto number = as_integer();
  if (!number) return std::nullopt;
  return static_cast<double>(*number);
}

std::string Value::undefined_reason() const {
  const auto& reason = get<Undefined>().reason;
  return reason ? *reason : "the value is undefined";
}

bool Value::truthy() const {
  switch (kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInt: return as_integer() != 0;
    case Kind::kFloat: return get<double>() != 0.0;
    case Kind::kString: return !text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: return !items().empty();
    case Kind::kDict: return dict().size() > 0;
    case Kind::kRange: return get<Range>().size() > 0;
    default: return true;
  }
}

const char* Value::type_name() const {
  switch (kind()) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "None";
    case Kind::kBool: return "bool";
    case Kind::kInt:
    case Kind::kBigInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kRange: return "range";
    case Kind::kView: return get<View>().name;
    case Kind::kIterator: return "generator";
    case Kind::kNamespace: return "Namespace";
    case Kind::kLoop: return "LoopContext";
    case Kind::kFunction: return "function";
  }
  return "object";
}

int Value::depth() const {
  switch (kind()) {
    case Kind::kList: return get<std::shared_ptr<const Sequence>>()->depth;
    case Kind::kTuple: return get<Tuple>().items->depth;
    case Kind::kView: return get<View>().items->depth;
    case Kind::kDict: return dict().depth();
    case Kind::kIterator: return get<std::shared_ptr<Iterator>>()->items->depth;
    case Kind::kLoop: return get<std::shared_ptr<LoopState>>()->depth();
    case Kind::kFunction: return get<std::shared_ptr<const Function>>()->self.depth() + 1;
    default: return 0;
  }
}

const Value* Dict::find(const std::string& key) const { return find_hash("s" + key); }

const Value* Dict::find_hash(const std::string& hash) const {
  const auto found = index_.find(hash);
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

void Dict::set(std::string hash, Value key, Value value) {
  depth_ = std::max({depth_, value.depth() + 1, key.depth() + 1});
  const auto [slot, is_new] = index_.emplace(std::move(hash), entries_.size());
  if (is_new) {
    entries_.emplace_back(std::move(key), std::move(value));
  } else {
    entries_[slot->second].second = std::move(value);
  }
}

std::optional<std::string> hash_key(Run& run, const Value& value) {
  if (!run.spend()) return std::nullopt;
  switch (value.kind()) {
    case Kind::kUndefined: return "u";
    case Kind::kNone: return "n";
    case Kind::kBool:
    case Kind::kInt: return "i" + std::to_string(*value.as_integer());
    case Kind::kBigInt: return "i" + *value.get<BigInteger>().digits;
    case Kind::kFloat: return hash_real(value.get<double>());
    case Kind::kString:
      if (!run.allocate(value.text().size())) return std::nullopt;
      return "s" + value.text();
    case Kind::kTuple: return hash_tuple(run, value);
    case Kind::kNamespace:
      return "o" + std::to_string(reinterpret_cast<uintptr_t>(value.get<Namespace*>()));
    case Kind::kList:
    case Kind::kDict:
      run.fail_type(std::string("unhashable type: '") + value.type_name() + "'");
      break;
    default: run.fail_unsupported(std::string("a key of type ") + value.type_name());
  }
  return std::nullopt;
}

Value make_string(Run& run, std::string text) {
  return run.allocate(text.size() + kStringBytes) ? Value::literal(std::move(text)) : Value{};
}

Value make_list(Run& run, List items) {
  return Value(Value::Storage(make_sequence(run, std::move(items))));
}

Value make_tuple(Run& run, List items) {
  return Value(Value::Storage(Tuple{make_sequence(run, std::move(items))}));
}

Value make_view(Run& run, List items, const char* name) {
  return Value(Value::Storage(View{make_sequence(run, std::move(items)), name}));
}

Value make_iterator(Run& run, List items) {
  auto iterator = std::make_shared<Iterator>(Iterator{make_sequence(run, std::move(items))});
  return Value(Value::Storage(std::move(iterator)));
}

Value make_dict(Run& run, Dict dict) {
  run.allocate(dict.size() * sizeof(Dict::Entry));
  if (!run.check_depth(dict.depth(), run.limits().value_depth, "value")) return Value{};
  return Value(Value::Storage(std::make_shared<const Dict>(std::move(dict))));
}

Value make_function(Run& run, Function function) {
  if (!run.check_depth(function.self.depth() + 1, run.limits().value_depth, "value"))
    return Value{};
  return Value(Value::Storage(std::make_shared<const Function>(std::move(function))));
}

void dict_set(Run& run, Dict& dict, const Value& key, Value value) {
  auto hash = hash_key(run, key);
  if (hash && run.allocate(kEntryBytes)) dict.set(std::move(*hash), key, std::move(value));
}

bool spend_on(Run& run, const Value& value) {
  return value.is_string() ? run.spend_on(value.text()) : run.spend();
}

List iterate(Run& run, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined: return {};
    case Kind::kString: return string_items(run, value.text());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: return run.spend(value.items().size()) ? value.items() : List{};
    case Kind::kRange: return range_items(run, value.get<Range>());
    case Kind::kDict: {
      List keys;
      if (!run.spend(value.dict().size())) return keys;
      for (const auto& entry : value.dict().entries()) keys.push_back(entry.first);
      return keys;
    }
    case Kind::kIterator: {
      Iterator& iterator = *value.get<std::shared_ptr<Iterator>>();
      const List& all = iterator.items->items;
      const auto first = static_cast<std::ptrdiff_t>(iterator.next);
      iterator.next = all.size();
      return run.spend(all.size()) ? List(all.begin() + first, all.end()) : List{};
    }
    case Kind::kLoop: run.fail_unsupported("iterating over loop"); return {};
    default: run.fail_type(std::string("'") + value.type_name() + "' object is not iterable");
  }
  return {};
}

}  // namespace tessera::jinja
