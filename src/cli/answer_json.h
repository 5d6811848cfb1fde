// SPDX-License-Identifier: Apache-2.0
// An answer as one JSON object on one line.
#pragma once

#include <tessera/json_writer.h>
#include <string>

#include "cli/options.h"
#include "cli/session.h"

namespace tessera::cli {

/// An object "drafts" by the place of a draft in its round.
void write_drafts(JsonWriter& json, const DraftUsage& drafts);

std::string answer_json(const Session& session, const RunArgs& args, const Answer& answer);

}  // namespace tessera::cli
