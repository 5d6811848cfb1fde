// SPDX-License-Identifier: Apache-2.0
// Which kernels of the n-gram memory run and how their work is cut: plain numbers, tested without a
// device.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "ops/ple.h"

namespace tessera::cuda {

inline constexpr int kPleVector = 8;  // columns of 16 bytes of BF16
inline constexpr int kPleTaps = 4;    // geometry of the fast kernels
inline constexpr int kPleDilation = 3;
inline constexpr int kPleColumns = 4;  // of a thread of the decode kernel
inline constexpr int kPleRowsAtOnce = 6;

/// Block widths of the decode kernel, narrowest first: one block holds a branch in registers. 640
/// threads fit 2560 columns exactly.
inline constexpr std::array kPleTiles = {32, 128, 640};

/// Index of the narrowest tile that holds a branch; -1: none does.
constexpr int plan_ple_tile(int hidden) {
  for (int tile = 0; tile < static_cast<int>(kPleTiles.size()); ++tile)
    if (hidden <= kPleTiles[static_cast<size_t>(tile)] * kPleColumns) return tile;
  return -1;
}
static_assert(kPleTiles[static_cast<size_t>(plan_ple_tile(2560))] == 640);

/// Empty when rows can be cut into 16-byte vectors and the convolution has four taps, else why not.
inline std::string_view supports_ple_vectors(const ops::PleMixArgs& args) {
  constexpr uintptr_t kAccessBytes = 16;
  const auto aligned = [](const auto*... pointers) {
    return ((reinterpret_cast<uintptr_t>(pointers) % kAccessBytes == 0) && ...);
  };
  if (args.hidden % kPleVector != 0) return "hidden is no multiple of 8";
  if (args.conv_kernel != kPleTaps) return "convolution is not of 4 taps";
  if (!aligned(args.key, args.value, args.wide, args.delta, args.norm_key, args.norm_query,
               args.norm_conv, args.conv_weight))
    return "a buffer is not 16-byte aligned";
  if (args.conv_ring.offset % kAccessBytes != 0 || args.conv_ring.entry_bytes % kAccessBytes != 0)
    return "ring entries are not 16-byte aligned";
  return {};
}

/// Whether a launch may overwrite ring entries that its own rows still read: then its rows enter
/// the ring in a later launch. Never so for the 1..K_max + 1 rows of recorded decode launches.
constexpr bool ple_stores_ring_later(const ops::RowBatch& batch, const ops::RingRef& ring) {
  int longest = 0;
  for (const ops::RowSpan& span : batch.spans) longest = std::max(longest, span.num_rows);
  return batch.role == ops::Role::kPrefill || longest + ring.reach > ring.slots;
}

/// Empty when one launch can gate, convolve and store the ring, else why not.
inline std::string_view supports_ple_decode(const ops::PleMixArgs& args) {
  if (const std::string_view reason = supports_ple_vectors(args); !reason.empty()) return reason;
  if (args.dilation != kPleDilation) return "dilation is not 3";
  if (plan_ple_tile(args.hidden) < 0) return "hidden is above 2560";
  if (ple_stores_ring_later(args.batch, args.conv_ring)) return "rows of a prompt";
  return {};
}

/// Byte offsets of the intermediate results of a launch in scratch memory.
struct PleScratch {
  size_t inputs = 0;  // [rows, branches * hidden] BF16: x, inputs of the convolution
  size_t gates = 0;   // [rows, branches] float
  size_t bytes = 0;
};

constexpr PleScratch plan_ple_scratch(int rows, int branches, int hidden) {
  constexpr size_t kAlign = 256;
  const size_t branch_rows = static_cast<size_t>(rows) * static_cast<size_t>(branches);
  PleScratch scratch;
  scratch.gates =
      (branch_rows * static_cast<size_t>(hidden) * sizeof(uint16_t) + kAlign - 1) / kAlign * kAlign;
  scratch.bytes = scratch.gates + branch_rows * sizeof(float);
  return scratch;
}

/// Empty when table rows can be decoded eight elements at a time, else why not.
inline std::string_view supports_gather_vectors(const ops::NgramGatherArgs& args) {
  constexpr uintptr_t kAccessBytes = 16;
  if (args.table->row_dim % kPleVector != 0) return "rows are no multiple of 8 elements";
  if (reinterpret_cast<uintptr_t>(args.out) % kAccessBytes != 0) return "output is not aligned";
  for (const void* shard : args.table->shards)
    if (reinterpret_cast<uintptr_t>(shard) % kAccessBytes != 0) return "a shard is not aligned";
  return {};
}

}  // namespace tessera::cuda
