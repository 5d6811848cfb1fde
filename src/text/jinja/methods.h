// SPDX-License-Identifier: Apache-2.0
// The methods of each type, for the one lookup in methods.cpp.
#pragma once

#include <span>

#include "text/jinja/builtins.h"

namespace tessera::jinja {

std::span<const NamedBuiltin> string_methods();

}  // namespace tessera::jinja
