// SPDX-License-Identifier: Apache-2.0
// Stepping and looking ahead in a for-loop.
#include "text/jinja/loop.h"

namespace tessera::jinja {

std::optional<Value> LoopState::pull() {
  const List& items = source_->items->items;
  while (source_->next < items.size()) {
    const Value& item = items[source_->next++];
    if (!filter_ || filter_(item)) return item;
  }
  return std::nullopt;
}

const Value* LoopState::peek() {
  if (!after_) after_ = pull();
  return after_ ? &*after_ : nullptr;
}

bool LoopState::advance() {
  auto next = after_ ? std::move(after_) : pull();
  after_.reset();
  if (!next) return false;
  ++index0_;
  at_first_ = index0_ == 0;
  before_ = std::move(current_);
  current_ = std::move(*next);
  return true;
}

int64_t LoopState::length() {
  if (length_) return *length_;
  if (has_length_) return *(length_ = static_cast<int64_t>(size_));
  // The rest has to be filtered now to be counted.
  List rest;
  if (after_) rest.push_back(*after_);
  while (auto item = pull()) rest.push_back(std::move(*item));
  length_ = index0_ + 1 + static_cast<int64_t>(rest.size());
  const int depth = source_->items->depth;
  source_ = std::make_shared<Iterator>(
      Iterator{std::make_shared<const Sequence>(Sequence{std::move(rest), depth})});
  filter_ = nullptr;
  after_.reset();
  return *length_;
}

std::optional<Value> LoopState::attribute(Run& run, std::string_view name) {
  if (name == "index") return Value::integer(index0_ + 1);
  if (name == "index0") return Value::integer(index0_);
  if (name == "length") return Value::integer(length());
  if (name == "revindex") return Value::integer(length() - index0_);
  if (name == "revindex0") return Value::integer(length() - index0_ - 1);
  if (name == "first") return Value::boolean(at_first_);
  if (name == "last") return Value::boolean(peek() == nullptr);
  if (name == "depth") return Value::integer(1);  // counts recursion only, which is refused
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem")
    return at_first_ ? Value::undefined("there is no previous item") : before_;
  if (name == "nextitem") {
    const Value* next = peek();
    return next != nullptr ? *next : Value::undefined("there is no next item");
  }
  if (name == "changed" || name == "cycle")
    run.fail_unsupported("loop." + std::string(name) + "()");
  return std::nullopt;
}

std::string LoopState::text() {
  return "<LoopContext " + std::to_string(index0_ + 1) + "/" + std::to_string(length()) + ">";
}

}  // namespace tessera::jinja
