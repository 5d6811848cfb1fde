// SPDX-License-Identifier: Apache-2.0
// Values as text: Python's str() and repr(), and JSON.
#pragma once

#include <string>

#include <tessera/json_writer.h>
#include "text/jinja/value.h"

namespace tessera::jinja {

/// str(value): what `{{ value }}` prints.
std::string to_text(Run& run, const Value& value);
/// repr(value): how it looks inside a printed container.
std::string to_repr(Run& run, const Value& value);
/// json.dumps(value) in the given layout; fails the run for values that JSON cannot hold.
std::string to_json(Run& run, const Value& value, const JsonStyle& style, bool sort_keys);

}  // namespace tessera::jinja
