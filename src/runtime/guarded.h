// SPDX-License-Identifier: Apache-2.0
// What the environment denies to one request must not end the others or the engine.
#pragma once

#include <tessera/error.h>
#include <exception>
#include <new>

namespace tessera {

/// Runs `work`, which returns a Result, and turns an exception into an error.
template <class Work>
auto guarded(Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return fail({.code = Errc::kOutOfMemory, .what = "out of memory"});
  } catch (const std::exception& exception) {
    return fail({.code = Errc::kInternal, .what = "round failed", .found = exception.what()});
  }
}

}  // namespace tessera
