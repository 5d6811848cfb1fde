// SPDX-License-Identifier: Apache-2.0
// An answer as one JSON object on one line.
#pragma once

#include <string>

#include "cli/options.h"
#include "cli/session.h"

namespace tessera::cli {

std::string answer_json(const Session& session, const RunArgs& args, const Answer& answer);

}  // namespace tessera::cli
