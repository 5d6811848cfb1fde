// SPDX-License-Identifier: Apache-2.0
// The filters of each source file, for the one lookup in filters.cpp.
#pragma once

#include <span>

#include "text/jinja/builtins.h"

namespace tessera::jinja {

std::span<const NamedBuiltin> text_filters();
std::span<const NamedBuiltin> number_filters();
std::span<const NamedBuiltin> sequence_filters();
std::span<const NamedBuiltin> selection_filters();

}  // namespace tessera::jinja
