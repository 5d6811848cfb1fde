// SPDX-License-Identifier: Apache-2.0
// JSON text to template values, keeping key order and every digit of long integers.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace tessera::jinja {

/// `where` names the text in errors, e.g. "tools".
Result<Value> parse_json(Run& run, std::string_view json, const std::string& where);

}  // namespace tessera::jinja
