// SPDX-License-Identifier: Apache-2.0
// How the draft layer's input is spread over blocks: a row is two norms, one block each, whose
// threads keep their columns in registers where a tile covers the branches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ops/draft.h"

namespace tessera::cuda {

inline constexpr int kDraftVector = 8;        // BF16 values of 16 bytes
inline constexpr int kDraftRowBlocks = 2;     // of a row: its branches, its token
inline constexpr int kDraftAnyThreads = 256;  // of the kernel for any width

struct DraftTile {
  int threads;
  int vectors;  // of a thread
  constexpr int covers() const { return threads * vectors * kDraftVector; }
};

/// Every block shape that is instantiated, smallest first. 640 threads with two vectors fit four
/// branches of 2560 exactly.
inline constexpr std::array kDraftTiles = {
    DraftTile{.threads = 64, .vectors = 1}, DraftTile{.threads = 256, .vectors = 1},
    DraftTile{.threads = 640, .vectors = 2}, DraftTile{.threads = 1024, .vectors = 4}};

/// Index of the smallest tile that holds all branches of a row; -1: none does.
constexpr int plan_draft(int wide) {
  for (int tile = 0; tile < static_cast<int>(kDraftTiles.size()); ++tile)
    if (wide <= kDraftTiles[static_cast<size_t>(tile)].covers()) return tile;
  return -1;
}
static_assert(kDraftTiles[static_cast<size_t>(plan_draft(4 * 2560))].threads == 640);

/// Empty when rows can be read and written as 16-byte vectors and a tile covers them, else why not.
inline std::string_view supports_draft_vectors(const ops::DraftInputArgs& args) {
  constexpr uintptr_t kAccessBytes = 16;
  const auto aligned = [](const auto*... pointers) {
    return ((reinterpret_cast<uintptr_t>(pointers) % kAccessBytes == 0) && ...);
  };
  if (args.table.dtype != DType::kBF16) return "the table is not BF16";
  if (args.table.in_features % kDraftVector != 0) return "hidden is no multiple of 8";
  if (!aligned(args.table.data, args.wide, args.norm_embedding, args.norm_hidden, args.embedded,
               args.normed))
    return "a buffer is not 16-byte aligned";
  if (plan_draft(args.branches * args.table.in_features) < 0) return "the branches are too wide";
  return {};
}

}  // namespace tessera::cuda
