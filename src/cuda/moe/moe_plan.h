// SPDX-License-Identifier: Apache-2.0
// Which kernels a mixture of experts runs on and how they are cut: pure functions of sizes and
// device numbers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/dtype.h"
#include "cuda/gpu_spec.h"

namespace tessera::cuda::moe {

struct MoeShape {
  int hidden = 0;
  int width = 0;         // of a routed expert
  int shared_width = 0;  // of the shared expert
  int num_experts = 0;
  int top_k = 0;
  DType routed = DType::kBF16;
  DType shared = DType::kBF16;

  constexpr int slots() const { return top_k + 1; }  // results of a row: routed, then shared
};

constexpr size_t kScratchAlign = 256;
constexpr size_t align_scratch(size_t bytes) {
  return (bytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
}
constexpr int ceil_div(int value, int unit) { return (value + unit - 1) / unit; }

// ---- Router ----

/// Rows of the gate a block of the fused router owns: one tensor core tile.
inline constexpr int kRouterTileRows = 16;
/// Above this many rows the selection gets a launch of its own, with a block per few rows; below,
/// the last block to finish the logits selects, which saves a launch.
inline constexpr int kFusedSelectRows = 8;
/// Largest number of experts whose logits a warp keeps in registers.
inline constexpr int kRegisterExperts = 512;

/// Hidden sizes the fused router is instantiated for.
inline constexpr std::array kRouterHiddens = {2560, 256, 128};

constexpr std::string_view why_not_fused_router(int hidden, DType gate, DType shared_gate) {
  if (gate != DType::kBF16 || shared_gate != DType::kBF16) return "router weights are not BF16";
  if (std::find(kRouterHiddens.begin(), kRouterHiddens.end(), hidden) == kRouterHiddens.end())
    return "no instance for this hidden size";
  return {};
}

// ---- Experts of generated rows: weights stream through registers ----

inline constexpr int kStreamWarps = 8;
inline constexpr int kStreamThreads = kStreamWarps * 32;
/// Rows that share one pass over an expert's weights: the columns of a tensor core tile.
inline constexpr int kStreamRows = 8;
/// Bounds of the tables each block keeps in shared memory.
inline constexpr int kStreamPairs = 2560;
inline constexpr int kStreamExperts = 1024;

/// One matrix product of the streaming kernels: contraction length and the number of pieces it is
/// cut into; each piece is summed by one warp, then the pieces in order.
struct StreamTile {
  int depth = 0;
  int slices = 0;

  constexpr int tiles() const { return kStreamWarps / slices; }  // 16-row tiles per item
};

inline constexpr std::array kUpTiles = {StreamTile{.depth = 2560, .slices = 8},
                                        StreamTile{.depth = 256, .slices = 8},
                                        StreamTile{.depth = 128, .slices = 4}};
inline constexpr std::array kDownTiles = {StreamTile{.depth = 640, .slices = 2},
                                          StreamTile{.depth = 128, .slices = 4},
                                          StreamTile{.depth = 64, .slices = 2}};
/// Rows of gate (and of up) per item, rows of down per item.
constexpr int up_item_rows(const StreamTile& tile) { return 8 * tile.tiles(); }
constexpr int down_item_rows(const StreamTile& tile) { return 16 * tile.tiles(); }

template <size_t kCount>
constexpr int find_tile(const std::array<StreamTile, kCount>& tiles, int depth) {
  for (size_t index = 0; index < kCount; ++index)
    if (tiles[index].depth == depth) return static_cast<int>(index);
  return -1;
}

/// Only the released sizes have an instance for FP8 weights.
inline constexpr int kF8Tile = 0;

constexpr std::string_view why_not_streaming(const MoeShape& shape) {
  const int up = find_tile(kUpTiles, shape.hidden), down = find_tile(kDownTiles, shape.width);
  if (up < 0) return "no instance for this hidden size";
  if (down < 0) return "no instance for this expert width";
  if (shape.shared_width != shape.width) return "the shared expert has another width";
  if (shape.width % up_item_rows(kUpTiles[static_cast<size_t>(up)]) != 0)
    return "items do not divide the expert width";
  if (shape.hidden % down_item_rows(kDownTiles[static_cast<size_t>(down)]) != 0)
    return "items do not divide the hidden size";
  if (shape.num_experts > kStreamExperts) return "too many experts for the table of a block";
  if (shape.top_k > kStreamPairs) return "too many experts per row";
  for (const DType dtype : {shape.routed, shape.shared}) {
    if (dtype != DType::kBF16 && dtype != DType::kF8E4M3) return "weights are not BF16 or FP8";
    if (dtype == DType::kF8E4M3 && (up != kF8Tile || down != kF8Tile))
      return "no FP8 instance for these sizes";
  }
  if (shape.routed == DType::kBF16 && shape.shared == DType::kF8E4M3)
    return "no instance for an FP8 shared expert beside BF16 ones";
  return {};
}

/// Rows of one launch: bounded by the tables in shared memory. Longer ones go block by block.
constexpr int stream_rows(const MoeShape& shape) { return kStreamPairs / std::max(1, shape.top_k); }

/// One block per multiprocessor holds 80 KB of loads in flight, twice what latency times bandwidth
/// asks for, and leaves room for the next kernel to start loading. An FP8 block has half as much.
constexpr int stream_blocks(DType routed, const GpuSpec& gpu) {
  constexpr int kBf16PerSm = 1, kF8PerSm = 2;
  return gpu.num_sms * (routed == DType::kF8E4M3 ? kF8PerSm : kBf16PerSm);
}

/// Distance of rows of silu(gate) * up, in elements: 16-byte aligned rows for either width.
constexpr int inner_stride(const MoeShape& shape) {
  constexpr int kVector = 8;
  return ceil_div(std::max(shape.width, shape.shared_width), kVector) * kVector;
}

/// Items of one block: shared items block, block + grid, ..; then a range of routed ones.
struct StreamShare {
  int num_shared = 0;
  int routed_begin = 0;
  int routed_end = 0;
};

/// Shared items are dealt out before the routing is known; the routed ones are cut so that every
/// block streams the same number of bytes. Costs are bytes per item in any unit.
constexpr StreamShare share_of(int block, int grid, int shared_items, int shared_cost,
                               int routed_items, int routed_cost) {
  const int64_t total = int64_t{shared_items} * shared_cost + int64_t{routed_items} * routed_cost;
  const auto routed_before = [=](int end) {
    const int64_t shared_before =
        int64_t{end} * (shared_items / grid) + std::min(end, shared_items % grid);
    const int64_t cost = total * end / grid - shared_before * shared_cost;
    const int64_t items = (std::max(cost, int64_t{0}) + routed_cost - 1) / routed_cost;
    return static_cast<int>(std::min(items, int64_t{routed_items}));
  };
  return {.num_shared = shared_items / grid + (block < shared_items % grid ? 1 : 0),
          .routed_begin = routed_before(block),
          .routed_end = routed_before(block + 1)};
}

/// Pieces of the scratch memory of one launch, in bytes.
struct StreamScratch {
  size_t inner = 0;    // [rows, slots, inner_stride] BF16
  size_t partial = 0;  // [rows, slots, hidden] FP32
  constexpr size_t bytes() const { return inner + partial; }
};
constexpr StreamScratch stream_scratch(const MoeShape& shape, int rows) {
  const auto entries = static_cast<size_t>(rows) * static_cast<size_t>(shape.slots());
  return {.inner = align_scratch(entries * static_cast<size_t>(inner_stride(shape)) *
                                 dtype_bytes(DType::kBF16)),
          .partial = align_scratch(entries * static_cast<size_t>(shape.hidden) * sizeof(float))};
}

/// Generic kernels: rows per block of rows, so that scratch stays bounded.
constexpr size_t kGenericScratch = size_t{256} << 20;
constexpr int generic_rows(const MoeShape& shape) {
  const size_t row = stream_scratch(shape, 1).bytes();
  return static_cast<int>(std::clamp<size_t>(kGenericScratch / row, 1, 4096));
}

// ---- Experts of prompts: grouped products on warpgroup tensor cores ----

inline constexpr int kGroupedExperts = 1024;  // bound of the tables in shared memory
/// Rows per block of rows: bounds scratch at 0.6 GB for the released sizes. Weights are read once
/// per block, so it is as long as the longest prompt chunk.
inline constexpr int kGroupedRows = 8192;
inline constexpr int kGroupedStepK = 64;
inline constexpr int kSortThreads = 512;  // pairs per segment

/// Weight rows of a tile: two consumer warpgroups with one or two blocks of 64.
constexpr int grouped_tile_rows(int blocks) { return 2 * 64 * blocks; }
/// Blocks of 64 per warpgroup for a matrix of `rows` weight rows; 0: none fits. Two halve the
/// traffic for the tokens.
constexpr int grouped_blocks(int rows) {
  for (const int blocks : {2, 1})
    if (rows % grouped_tile_rows(blocks) == 0) return blocks;
  return 0;
}
/// Token rows of a tile at most: two blocks of 64 by 192 fill the register file of a warpgroup.
/// FP8 needs registers for the codes on their way.
constexpr int grouped_tokens(DType weight) { return weight == DType::kF8E4M3 ? 128 : 192; }

/// Entries per tile of a group of `count` entries that the sort gave `tiles` tiles: equally many,
/// as far as whole columns of the product allow. The last tile is never empty, because no tile is
/// longer than what the sort counted with.
constexpr int tile_tokens(int count, int tiles) {
  constexpr int kColumnUnit = 8;
  return ceil_div(ceil_div(count, tiles), kColumnUnit) * kColumnUnit;
}

/// Where row `row` of the weight rows that an expert's tiles cover lies: gate and up alternate in
/// groups of eight, so that one thread gets both of a feature.
struct WeightPlace {
  int row = 0;          // of the matrix
  bool second = false;  // up instead of gate
};
constexpr WeightPlace weight_place(bool up, int row) {
  constexpr int kGroup = 8;
  if (!up) return {row, false};
  return {row / (2 * kGroup) * kGroup + row % kGroup, row / kGroup % 2 != 0};
}

constexpr std::string_view why_not_grouped(const MoeShape& shape, const GpuSpec& gpu) {
  if (!gpu.is_hopper()) return "needs warpgroup products of sm_90a";
  if (shape.shared_width != shape.width) return "the shared expert has another width";
  if (shape.hidden % kGroupedStepK != 0 || shape.width % kGroupedStepK != 0)
    return "sizes are no multiples of 64";
  const int up = grouped_blocks(2 * shape.width), down = grouped_blocks(shape.hidden);
  if (up == 0 || down == 0) return "tiles of 128 weight rows do not divide the matrices";
  if (shape.num_experts < 1 || shape.num_experts > kGroupedExperts)
    return "too many experts for the table of a block";
  if (shape.top_k < 1) return "no routed experts";
  for (const DType dtype : {shape.routed, shape.shared}) {
    if (dtype == DType::kBF16) continue;
    if (dtype != DType::kF8E4M3) return "weights are not BF16 or FP8";
    constexpr int kScaleRows = 128;
    if (up != 2 || down != 2 || shape.width % kScaleRows != 0 || shape.hidden % kScaleRows != 0)
      return "tiles would cut the blocks of FP8 scales";
  }
  return {};
}

struct GroupedScratch {
  size_t inner = 0;        // [entries, width] BF16
  size_t results = 0;      // [entries, hidden] BF16
  size_t histogram = 0;    // [segments, num_experts]
  size_t places = 0;       // [rows, slots]
  size_t source_rows = 0;  // [entries]
  size_t tables = 0;       // begins, counts, tile_begins of every group
  constexpr size_t bytes() const {
    return inner + results + histogram + places + source_rows + tables;
  }
};
constexpr int sort_segments(const MoeShape& shape, int rows) {
  return ceil_div(rows * shape.top_k, kSortThreads);
}
constexpr GroupedScratch grouped_scratch(const MoeShape& shape, int rows) {
  const auto entries = static_cast<size_t>(rows) * static_cast<size_t>(shape.slots());
  const auto experts = static_cast<size_t>(shape.num_experts);
  const size_t ints = sizeof(int), bf16 = dtype_bytes(DType::kBF16);
  return {
      .inner = align_scratch(entries * static_cast<size_t>(shape.width) * bf16),
      .results = align_scratch(entries * static_cast<size_t>(shape.hidden) * bf16),
      .histogram = align_scratch(static_cast<size_t>(sort_segments(shape, rows)) * experts * ints),
      .places = align_scratch(entries * ints),
      .source_rows = align_scratch(entries * ints),
      .tables = 3 * align_scratch((experts + 2) * ints)};
}

}  // namespace tessera::cuda::moe
