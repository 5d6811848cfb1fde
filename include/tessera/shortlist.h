// SPDX-License-Identifier: Apache-2.0
// Ids of frequent tokens: the only ones that the draft head scores when an engine is given a list.
// Drafts are verified with the whole head, so a list changes how fast a text comes, never the text.
#pragma once

#include <tessera/error.h>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// A file holds, in little endian and without padding: "TSRSLIST", uint32 format (1), uint32
/// vocab_size, uint64 vocabulary, uint64 number of ids, the ids as int32, and the XXH3 checksum
/// (uint64) of all bytes before it.
struct Shortlist {
  uint32_t vocab_size = 0;     // of the tokenizer: its highest id + 1
  uint64_t vocabulary = 0;     // Tokenizer::fingerprint()
  std::vector<int32_t> ids{};  // at least one, ascending, each once, below vocab_size
};

inline constexpr size_t kDefaultShortlistSize = 32768;

/// The ids with the highest counts, at most `size` of them and none that was never seen, ascending;
/// of equal counts the lower id. `counts` is indexed by id.
std::vector<int32_t> most_frequent_ids(std::span<const uint64_t> counts, size_t size);

/// Bytes of a file.
std::vector<std::byte> encode_shortlist(const Shortlist& list);
/// Reads them back; nothing in them is trusted. Errors: kCorruptFile; `where` names the source.
Result<Shortlist> decode_shortlist(std::span<const std::byte> file, const std::string& where);
/// Replaces the checksum at the end by the right one, so that tests and fuzzers get past it.
void reseal_shortlist(std::span<std::byte> file);

/// Writes a file, over whatever has the name. Errors: kNotFound with the text of the system.
Result<void> save_shortlist(const Shortlist& list, const std::string& path);
/// Errors: kNotFound, and those of decode_shortlist.
Result<Shortlist> load_shortlist(const std::string& path);

}  // namespace tessera
