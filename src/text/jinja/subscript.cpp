// SPDX-License-Identifier: Apache-2.0
// Attributes, subscripts and slices of template values.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

bool fail_if_undefined(Run& run, const Value& value) {
  if (value.is_undefined()) run.fail_type(value.undefined_reason());
  return value.is_undefined();
}

/// What getattr() of Python finds: methods, loop attributes, namespace variables.
std::optional<Value> own_attribute(Run& run, const Value& container, const std::string& name) {
  if (container.is(Kind::kLoop))
    return container.get<std::shared_ptr<LoopState>>()->attribute(run, name);
  if (container.is(Kind::kNamespace)) {
    const Value* found = container.get<Namespace*>()->values.find(name);
    if (found != nullptr) return *found;
    return std::nullopt;
  }
  if (is_changing_method(container, name))
    return Value::undefined("templates must not call '" + name + "', it changes its object");
  if (!has_method(container, name)) return std::nullopt;
  return make_function(run, {.type = Function::Type::kMethod, .name = name, .self = container});
}

std::string missing_text(const Value& container, const std::string& name) {
  return std::string("'") + container.type_name() + " object' has no attribute '" + name + "'";
}

std::optional<size_t> position(int64_t index, int64_t size) {
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  return static_cast<size_t>(index);
}

std::optional<Value> item_at(Run& run, const Value& container, int64_t index) {
  if (container.is(Kind::kRange)) {
    const Range& range = container.get<Range>();
    const auto at = position(index, range.size());
    if (!at) return std::nullopt;
    return Value::integer(range.start + static_cast<int64_t>(*at) * range.step);
  }
  if (container.is_string()) {
    const std::string& text = container.text();
    if (!run.allocate(text.size() * sizeof(size_t))) return std::nullopt;
    const auto starts = strings::character_starts(text);
    const auto at = position(index, static_cast<int64_t>(starts.size()) - 1);
    if (!at) return std::nullopt;
    return make_string(run, text.substr(starts[*at], starts[*at + 1] - starts[*at]));
  }
  const auto at = position(index, static_cast<int64_t>(container.items().size()));
  return at ? std::optional(container.items()[*at]) : std::nullopt;
}

bool is_indexable(const Value& value) {
  return value.is_string() || value.is(Kind::kList) || value.is(Kind::kTuple) ||
         value.is(Kind::kRange);
}

std::optional<Value> own_item(Run& run, const Value& container, const Value& key) {
  if (container.is(Kind::kDict)) {
    const bool hashable = !key.is(Kind::kList) && !key.is(Kind::kDict);
    const auto hash = hashable ? hash_key(run, key) : std::nullopt;
    const Value* found = hash ? container.dict().find_hash(*hash) : nullptr;
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  const auto index = key.as_integer();
  return index && is_indexable(container) ? item_at(run, container, *index) : std::nullopt;
}

struct SliceBounds {
  int64_t start;
  int64_t stop;
  int64_t step;
  int64_t count;
  size_t index(int64_t taken) const { return static_cast<size_t>(start + taken * step); }
};

/// Bounds of a Python slice over `size` items.
std::optional<SliceBounds> slice_bounds(Run& run, int64_t size, const Value& start,
                                        const Value& stop, const Value& step) {
  for (const Value* part : {&start, &stop, &step})
    if (!part->is_none() && !part->as_integer()) run.fail_type("slice indices must be integers");
  const int64_t stride = step.is_none() ? 1 : step.as_integer().value_or(1);
  if (stride == 0) run.fail_type("slice step cannot be zero");
  if (!run.ok()) return std::nullopt;
  const int64_t lowest = stride < 0 ? -1 : 0;
  const int64_t highest = stride < 0 ? size - 1 : size;
  const auto clamp = [&](const Value& part, int64_t otherwise) {
    if (part.is_none()) return otherwise;
    const int64_t index = *part.as_integer();
    return std::clamp(index < 0 ? index + size : index, lowest, highest);
  };
  const int64_t first = clamp(start, stride < 0 ? highest : lowest);
  const int64_t last = clamp(stop, stride < 0 ? lowest : highest);
  const int64_t span = stride < 0 ? first - last : last - first;
  // A stride beyond the size picks one item; clamping keeps the arithmetic within 64 bits.
  const int64_t pace = std::clamp<int64_t>(stride, -size - 1, size + 1);
  const int64_t size_of_pace = pace < 0 ? -pace : pace;
  return SliceBounds{first, last, pace, span <= 0 ? 0 : (span - 1) / size_of_pace + 1};
}

Value slice_text(Run& run, const std::string& text, const Value& start, const Value& stop,
                 const Value& step) {
  if (!run.allocate(text.size() * sizeof(size_t))) return {};
  const auto starts = strings::character_starts(text);
  const auto size = static_cast<int64_t>(starts.size()) - 1;
  const auto bounds = slice_bounds(run, size, start, stop, step);
  if (!bounds) return {};
  std::string out;
  for (int64_t taken = 0; taken < bounds->count; ++taken) {
    const size_t index = bounds->index(taken);
    out.append(text, starts[index], starts[index + 1] - starts[index]);
  }
  return make_string(run, std::move(out));
}

}  // namespace

Value attribute(Run& run, const Value& container, const std::string& name) {
  if (fail_if_undefined(run, container)) return {};
  if (auto found = own_attribute(run, container, name)) return *found;
  if (auto found = own_item(run, container, Value::literal(name))) return *found;
  return Value::undefined(missing_text(container, name));
}

Value subscript(Run& run, const Value& container, const Value& key) {
  if (fail_if_undefined(run, container)) return {};
  if (auto found = own_item(run, container, key)) return *found;
  if (key.is_string())
    if (auto found = own_attribute(run, container, key.text())) return *found;
  std::string name = key.is_string()    ? key.text()
                     : key.as_integer() ? std::to_string(*key.as_integer())
                                        : std::string(key.type_name());
  return Value::undefined(missing_text(container, name));
}

Value slice(Run& run, const Value& container, const Value& start, const Value& stop,
            const Value& step) {
  if (fail_if_undefined(run, container)) return {};
  if (!is_indexable(container)) {
    run.fail_type(std::string("'") + container.type_name() + "' object cannot be sliced");
    return {};
  }
  if (container.is_string()) return slice_text(run, container.text(), start, stop, step);
  const auto bounds = slice_bounds(run, length_of(run, container), start, stop, step);
  if (!bounds || !run.spend(static_cast<uint64_t>(bounds->count))) return {};
  if (container.is(Kind::kRange)) {
    const Range& range = container.get<Range>();
    return Value(
        Value::Storage(Range{range.start + bounds->start * range.step,
                             range.start + bounds->stop * range.step, range.step * bounds->step}));
  }
  List items;
  for (int64_t taken = 0; taken < bounds->count; ++taken)
    items.push_back(container.items()[bounds->index(taken)]);
  return container.is(Kind::kList) ? make_list(run, std::move(items))
                                   : make_tuple(run, std::move(items));
}

}  // namespace tessera::jinja
