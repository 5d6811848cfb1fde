// SPDX-License-Identifier: Apache-2.0
// The rows of a launch and where the state of their sequences lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace tessera::ops {

inline constexpr int kPageTokens = 64;

/// A row's arithmetic path depends on its role, never on how many rows share the launch.
enum class Role : uint8_t {
  kPrefill,  // prompt rows: matrix products over many rows, chunked GDN
  kDecode,   // generated and drafted rows: same bits alone or in any batch
};

/// Consecutive rows of one sequence.
struct RowSpan {
  int row_begin = 0;
  int num_rows = 0;
  int64_t position = 0;       // index of the first row within its sequence (tokens absorbed before)
  std::byte* slot = nullptr;  // ring and single parts of the sequence (StateLayout offsets)
  const int32_t* pages = nullptr;  // page ids in the backend's memory, entry p / 64 holds token p
};

/// All rows of a launch, spans in row order without gaps.
struct RowBatch {
  std::span<const RowSpan> spans{};
  int num_rows = 0;
  Role role = Role::kPrefill;
};

/// A ring inside the slot: entry of token p is slot + offset + (p % slots) * entry_bytes.
struct RingRef {
  size_t offset = 0;
  size_t entry_bytes = 0;
  int slots = 0;
  int reach = 0;  // entries before the current token that are read

  std::byte* entry(std::byte* slot, int64_t position) const {
    return slot + offset + static_cast<size_t>(position % slots) * entry_bytes;
  }
};

/// One layer's part of the page pool: page id -> pool + id * page_stride + offset.
struct PageRef {
  std::byte* pool = nullptr;
  size_t page_stride = 0;
  size_t offset = 0;
  DType dtype = DType::kF32;

  std::byte* page(int32_t id) const {
    return pool + static_cast<size_t>(id) * page_stride + offset;
  }
};

}  // namespace tessera::ops
