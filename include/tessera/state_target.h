// SPDX-License-Identifier: Apache-2.0
// Whether a state can be saved under a name, asked before the work that the state comes from.
#pragma once

#include <tessera/error.h>
#include <string>

namespace tessera {

/// The file that saving to `path` writes, symbolic links resolved: its folder exists and is
/// writable, and it is absent or already a state file. Anything else is never overwritten.
/// Errors: kNotFound (folder), kInvalidArgument (something else is there).
Result<std::string> state_target(const std::string& path);

}  // namespace tessera
