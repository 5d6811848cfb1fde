// SPDX-License-Identifier: Apache-2.0
// Reduced runs of the op suite and the kernel tests, for tools that watch every access to shared
// memory (docs/sanitizers.md): few and small cases, at least one for each kernel instance and code
// path. Asked for with TESSERA_REDUCED_TESTS=1.
#pragma once

#include <cstdlib>
#include <string_view>
#include <utility>

namespace tessera::test {

/// Whether this run is a reduced one.
inline bool reduced() {
  static const bool asked = [] {
    const char* value = std::getenv("TESSERA_REDUCED_TESTS");
    return value != nullptr && std::string_view(value) != "0" && !std::string_view(value).empty();
  }();
  return asked;
}

/// `full`, or `few` in a reduced run: sizes, counts, lists of cases.
template <class Value>
Value sized(Value full, Value few) {
  return reduced() ? std::move(few) : std::move(full);
}

/// Why a test that compares launches with each other skips itself in a reduced run.
inline constexpr std::string_view kSameKernels =
    "reduced run: another test of this suite launches the same kernels";

}  // namespace tessera::test
