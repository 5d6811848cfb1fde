// SPDX-License-Identifier: Apache-2.0
// What the environment denies to one request must not end the others or the engine.
#pragma once

#include <tessera/error.h>
#include <exception>
#include <new>

namespace tessera {

/// Runs `work`, which returns a Result, so that a failed allocation is an Error. Its text fits into
/// the string object: there may be no memory for more.
template <class Work>
auto with_memory_failure(Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return fail({.code = Errc::kOutOfMemory, .what = "out of memory"});
  }
}

/// The same for every exception.
template <class Work>
auto guarded(Work&& work) -> decltype(work()) {
  try {
    return with_memory_failure(work);
  } catch (const std::exception& exception) {
    return fail({.code = Errc::kInternal, .what = "round failed", .found = exception.what()});
  }
}

}  // namespace tessera
