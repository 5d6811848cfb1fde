// SPDX-License-Identifier: Apache-2.0
// Untrusted JSON as a value: errors carry a byte position, repeated keys are refused.
#pragma once

#include <tessera/error.h>
#include <boost/json/value.hpp>
#include <string>
#include <string_view>

namespace tessera {

/// Fails with kCorruptFile on malformed text, invalid UTF-8, deep nesting and repeated keys (two
/// readers could disagree on which one counts).
Result<boost::json::value> parse_json(std::string_view text, const std::string& where);

}  // namespace tessera
