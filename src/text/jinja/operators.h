// SPDX-License-Identifier: Apache-2.0
// Python's operators on template values. Integers have 64 bits; going beyond fails the run.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace tessera::jinja {

bool equals(Run& run, const Value& left, const Value& right);
/// "<", "<=", ">" or ">="; fails the run for values without an order.
bool ordered(Run& run, std::string_view comparison, const Value& left, const Value& right);
/// `item in container`.
bool contains(Run& run, const Value& container, const Value& item);
/// "+", "-", "*", "/", "//", "%" or "**".
Value arithmetic(Run& run, std::string_view name, const Value& left, const Value& right);
Value negate(Run& run, const Value& value);

/// container.name, with dict keys behind methods; undefined when there is none.
Value attribute(Run& run, const Value& container, const std::string& name);
/// container[key], with methods behind keys; undefined when there is none.
Value subscript(Run& run, const Value& container, const Value& key);
/// container[start:stop:step]; absent parts are None.
Value slice(Run& run, const Value& container, const Value& start, const Value& stop,
            const Value& step);

}  // namespace tessera::jinja
