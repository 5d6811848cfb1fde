// SPDX-License-Identifier: Apache-2.0
// The interactive chat.
#pragma once

#include "cli/conversation.h"
#include "cli/options.h"
#include "cli/session.h"

namespace tessera::cli {

/// Reads lines until the user leaves. Failed turns are reported and the chat goes on.
void chat_loop(const RunArgs& args, Session& session, Conversation& conversation);

}  // namespace tessera::cli
