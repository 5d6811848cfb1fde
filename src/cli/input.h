// SPDX-License-Identifier: Apache-2.0
// Text that the user names: a file, or standard input.
#pragma once

#include <tessera/error.h>
#include <string>

namespace tessera::cli {

/// The bytes of a file; "-" is standard input. Errors: kNotFound with the reason of the system.
Result<std::string> read_input(const std::string& path);

}  // namespace tessera::cli
