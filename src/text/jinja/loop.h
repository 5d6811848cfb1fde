// SPDX-License-Identifier: Apache-2.0
// The `loop` variable: position, neighbours and length of a running for-loop.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "text/jinja/value.h"

namespace tessera::jinja {

/// Pulls items one by one through the loop's `if` filter. Like Jinja it looks ahead only when
/// asked to (`last`, `nextitem`, `length`), because a filter may depend on what the body does.
class LoopState {
 public:
  using Filter = std::function<bool(const Value&)>;
  LoopState(std::shared_ptr<Iterator> source, Filter filter, bool has_length)
      : source_(std::move(source)),
        filter_(std::move(filter)),
        has_length_(has_length),
        size_(source_->items->items.size()) {}

  /// Moves on; false at the end.
  bool advance();
  const Value& current() const { return current_; }

  /// loop.NAME, or nothing when there is no such attribute.
  std::optional<Value> attribute(Run& run, std::string_view name);
  /// Printed form.
  std::string text();
  int64_t length();
  int64_t index0() const { return index0_; }
  int depth() const { return source_->items->depth + 1; }

 private:
  const Value* peek();
  std::optional<Value> pull();

  std::shared_ptr<Iterator> source_;
  Filter filter_;
  bool has_length_;  // the iterable knows its length; a filtered or one-pass one does not
  size_t size_;
  std::optional<int64_t> length_{};
  int64_t index0_ = -1;
  Value before_{};
  Value current_{};
  std::optional<Value> after_{};
  bool at_first_ = true;
};

}  // namespace tessera::jinja
