// SPDX-License-Identifier: Apache-2.0
// A snapshot on disk: header, table of parts, token ids, slot parts, pages, checksum. The file says
// everything its meaning depends on, and reading trusts none of it.
#pragma once

#include <tessera/error.h>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "model/state_layout.h"
#include "runtime/page_pool.h"
#include "runtime/state_snapshot.h"

namespace tessera {

/// Raise it when the same weights and tokens give other state bytes than before: old files are then
/// refused.
inline constexpr uint32_t kNumericsVersion = 1;

/// What a state file must agree with.
struct StateIdentity {
  const StateLayout* layout = nullptr;
  uint64_t weights = 0;  // fingerprint of weights and config
  int vocab_size = 0;
};

/// Takes the next bytes of a file; false stops the writing.
using ByteSink = std::function<bool(std::span<const std::byte>)>;

/// Hands the file to `sink` piece by piece; false when the sink refused one.
bool encode_state(const StateSnapshot& snapshot, const StateIdentity& identity,
                  const ByteSink& sink);

/// Reads it back into fresh pages of `pool`; `where` names the source in errors.
/// Errors: kCorruptFile (damaged, truncated), kMismatch (whole, but of another model or geometry),
/// kOutOfMemory (no free pages). Sizes are checked before anything is allocated.
Result<std::shared_ptr<const StateSnapshot>> decode_state(std::span<const std::byte> file,
                                                          const StateIdentity& identity,
                                                          const std::shared_ptr<PagePool>& pool,
                                                          const std::string& where);

/// Replaces the checksum at the end by the right one, so that tests and fuzzers get past it.
void reseal_state(std::span<std::byte> file);

/// Writes to a temporary file in the same folder and renames it, so that `path` is never half
/// written. Errors: kNotFound with the text of the system, kOutOfMemory.
Result<void> save_state_file(const StateSnapshot& snapshot, const StateIdentity& identity,
                             const std::string& path);
/// Reads a saved file. Errors: kNotFound and those of decode_state; nothing is thrown.
Result<std::shared_ptr<const StateSnapshot>> load_state_file(const std::string& path,
                                                             const StateIdentity& identity,
                                                             const std::shared_ptr<PagePool>& pool);

}  // namespace tessera
