// SPDX-License-Identifier: Apache-2.0
// Records of a state file (little endian, no padding) and the sizes that follow from them.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "model/state_layout.h"
#include "runtime/state_file.h"
#include "runtime/state_snapshot.h"

namespace tessera::state_codec {

static_assert(std::endian::native == std::endian::little, "state files are little endian");

inline constexpr std::array<char, 8> kMagic = {'T', 'S', 'R', 'S', 'T', 'A', 'T', 'E'};
inline constexpr uint32_t kFormatVersion = 1;
inline constexpr size_t kNameBytes = 24;
using Checksum = uint64_t;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t format = kFormatVersion;
  uint32_t numerics = kNumericsVersion;
  uint64_t weights = 0;
  uint32_t cache_dtype = 0;
  uint32_t page_tokens = 0;
  uint32_t vocab_size = 0;
  uint32_t num_parts = 0;
  uint64_t num_tokens = 0;
};
static_assert(std::has_unique_object_representations_v<Header>);

/// One row of the state table.
struct PartRecord {
  std::array<char, kNameBytes> name{};
  uint32_t rule = 0;
  uint32_t layers = 0;
  uint32_t slots = 0;
  uint32_t reach = 0;
  uint64_t entry_bytes = 0;

  bool operator==(const PartRecord&) const = default;
};
static_assert(std::has_unique_object_representations_v<PartRecord>);

using PartTable = std::array<PartRecord, kNumStateParts>;
inline constexpr size_t kFixedBytes = sizeof(Header) + sizeof(PartTable);

/// The header of a file with this identity and number of tokens.
Header header_of(const StateIdentity& identity, uint64_t num_tokens);
PartTable table_of(const StateLayout& layout);

/// Stored bytes of all regions of a slot or of one page.
size_t region_bytes(const StateLayout& layout, Storage storage);
/// Size of the whole file; `num_tokens` must be small enough for the pool.
size_t file_bytes(const StateLayout& layout, int64_t num_tokens);

}  // namespace tessera::state_codec
