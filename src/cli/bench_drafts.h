// SPDX-License-Identifier: Apache-2.0
// What `tessera bench --draft` prints.
#pragma once

#include <tessera/bench.h>
#include <tessera/json_writer.h>

namespace tessera::cli {

/// Tables for people; nothing where no drafts were measured.
void print_drafts(const BenchReport& report);

/// An array "drafting" of the open object.
void write_draft_cases(JsonWriter& json, const std::vector<DraftCase>& cases);

}  // namespace tessera::cli
