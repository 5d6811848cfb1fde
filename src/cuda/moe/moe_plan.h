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

/// Rows of the gate a block of the fused router owns: the columns of a tensor core tile.
inline constexpr int kRouterTileRows = 8;
/// Rows of x a block looks at: the tile's rows.
inline constexpr int kRouterPassRows = 16;
/// Above this many rows the selection gets a launch of its own, with a warp per row; below, one
/// block of the first launch selects, which saves a launch.
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

// ---- Experts of generated rows: weights stream through shared memory ----

/// A weight row is cut into slices of one memory line. Two sets of warps take turns at the tiles of
/// 16 weight rows; a stage is what one set works on at a time, a slice of a tile per warp.
struct StreamGeometry {
  static constexpr int kSets = 2;  // each has a ring of stages and a producer warp
  static constexpr int kSetWarps = 10;
  /// Five per scheduler: a warp waits for its own chain of loads, widening and products most of the
  /// time.
  static constexpr int kWarps = kSets * kSetWarps;
  static constexpr int kConsumers = kWarps * 32;
  static constexpr int kThreads = kConsumers + kSets * 32;
  static constexpr int kStages = 4;   // of each ring
  static constexpr int kColumns = 8;  // rows that share a pass over an expert's weights
  static constexpr int kTileRows = 16;
  static constexpr int kHalfRows = kTileRows / 2;  // up: of gate, then as many of up
  static constexpr int kTiles = 2;  // of a warp between two meetings of the consumers
  static constexpr int kSliceBytes = 128;
  static constexpr int kStageBytes = kSetWarps * kTileRows * kSliceBytes;
  static constexpr int kHeldVectors = 8;     // of activations in a lane's registers
  static constexpr int kMostPairs = 2560;    // bounds of the tables
  static constexpr int kMostExperts = 1024;  // in shared memory
};

/// Who sums what: a team of warps covers K once, each of its warps every per_team-th slice; the
/// teams take turns at the tiles. From the length of a weight row alone, so that the order of every
/// sum is.
struct StreamSplit {
  int slices = 0;
  int per_team = 0;
  int set_teams = 0;  // tiles that a set works on at a time
  int stages = 0;     // of a tile

  constexpr int teams() const { return StreamGeometry::kSets * set_teams; }
};
constexpr StreamSplit split_stream(int row_bytes) {
  constexpr int kSetWarps = StreamGeometry::kSetWarps;
  const int slices = std::max(1, row_bytes / StreamGeometry::kSliceBytes);
  const int set_teams = std::max(1, kSetWarps / slices);
  const int per_team = std::min(kSetWarps, slices);
  return {.slices = slices,
          .per_team = per_team,
          .set_teams = set_teams,
          .stages = ceil_div(slices, per_team)};
}

/// Stages of a tile whose activations a warp can keep while it goes through the tiles of an expert:
/// the four lanes of a column share a slice.
constexpr int held_stages(DType dtype) {
  constexpr int kLanes = 4, kVectorBytes = 16, kBf16 = 2;
  const int slice_elements = StreamGeometry::kSliceBytes / static_cast<int>(dtype_bytes(dtype));
  return StreamGeometry::kHeldVectors * kLanes * kVectorBytes / (slice_elements * kBf16);
}

constexpr std::string_view why_not_streaming(const MoeShape& shape, const GpuSpec& gpu) {
  if (!gpu.is_hopper()) return "needs the copy engine of sm_90";
  if (shape.shared_width != shape.width) return "the shared expert has another width";
  if (shape.width % StreamGeometry::kHalfRows != 0 || shape.hidden % StreamGeometry::kTileRows != 0)
    return "tiles of 16 weight rows do not divide the matrices";
  if (shape.num_experts > StreamGeometry::kMostExperts)
    return "too many experts for the table of a block";
  if (shape.top_k > StreamGeometry::kMostPairs) return "too many experts per row";
  // What share_of multiplies, with a group per pair.
  const int64_t slices = int64_t{shape.width} * shape.hidden / StreamGeometry::kTileRows *
                         static_cast<int64_t>(sizeof(uint16_t)) / StreamGeometry::kSliceBytes;
  constexpr int64_t kMatrices = 2;  // up counts gate and up
  if (kMatrices * slices * (StreamGeometry::kMostPairs + 1) * gpu.num_sms > INT32_MAX)
    return "experts are too large for the shares of a block";
  for (const DType dtype : {shape.routed, shape.shared}) {
    if (dtype != DType::kBF16 && dtype != DType::kF8E4M3) return "weights are not BF16 or FP8";
    for (const int depth : {shape.hidden, shape.width}) {
      const size_t row_bytes = static_cast<size_t>(depth) * dtype_bytes(dtype);
      if (row_bytes == 0 || row_bytes % StreamGeometry::kSliceBytes != 0)
        return "weight rows are no multiple of 128 bytes";
      if (split_stream(static_cast<int>(row_bytes)).stages > held_stages(dtype))
        return "activations do not fit into registers";
    }
  }
  return {};
}

/// Rows of one launch: bounded by the tables in shared memory. Longer ones go block by block.
constexpr int stream_rows(const MoeShape& shape) {
  return StreamGeometry::kMostPairs / std::max(1, shape.top_k);
}

/// Distance of rows of silu(gate) * up, in elements: 16-byte aligned rows for either width.
constexpr int inner_stride(const MoeShape& shape) {
  constexpr int kVector = 8;
  return ceil_div(std::max(shape.width, shape.shared_width), kVector) * kVector;
}

/// Tiles of one block for one of the two products: a range of the shared expert's and one of the
/// routed experts'.
struct StreamShare {
  int shared_begin = 0;
  int shared_end = 0;
  int routed_begin = 0;
  int routed_end = 0;
};

/// Shared tiles are dealt out before the routing is known; the routed ones are cut so that every
/// block streams the same number of bytes. Costs are bytes per tile in any unit; 32 bits, because
/// the memory idles while a thread divides: tiles times costs times blocks must stay below 2^31.
constexpr StreamShare share_of(int block, int grid, int shared_tiles, int shared_cost,
                               int routed_tiles, int routed_cost) {
  const int total = shared_tiles * shared_cost + routed_tiles * routed_cost;
  // The first blocks take one more: a block that has none makes up for it with routed tiles.
  const auto shared_before = [=](int end) {
    return end * (shared_tiles / grid) + std::min(end, shared_tiles % grid);
  };
  const auto routed_before = [=](int end) {
    const int cost = total * end / grid - shared_before(end) * shared_cost;
    return std::min(ceil_div(std::max(cost, 0), routed_cost), routed_tiles);
  };
  return {.shared_begin = shared_before(block),
          .shared_end = shared_before(block + 1),
          .routed_begin = routed_before(block),
          .routed_end = routed_before(block + 1)};
}

/// Pieces of the scratch memory of one launch, in bytes.
struct StreamScratch {
  size_t inner = 0;    // [rows, slots, inner_stride] BF16
  size_t partial = 0;  // [rows, slots, hidden], FP32 in the generic kernels, else BF16
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
inline constexpr int kGroupedTokens = 192;
/// FP8: products this narrow leave registers for widening the next codes while they run.
inline constexpr int kGroupedNarrowTokens = 128;
/// Token rows of a routed tile at most. Narrow tiles as long as nearly every expert fits into one.
constexpr int grouped_tokens(const MoeShape& shape, int rows) {
  constexpr int kMostMean = 96;
  const int mean = ceil_div(rows * shape.top_k, std::max(1, shape.num_experts));
  return shape.routed == DType::kF8E4M3 && mean <= kMostMean ? kGroupedNarrowTokens
                                                             : kGroupedTokens;
}
/// Products over one set of entries: up and down, of the shared and of the routed experts.
inline constexpr int kGroupedLaunches = 4;

/// Token rows of a tile of the shared expert when it has a launch of its own: as few as keep every
/// multiprocessor busy in as many rounds as the longest tiles need.
constexpr int shared_tile_tokens(int rows, int weight_tiles, int num_sms) {
  constexpr int kLeast = 64, kColumnUnit = 8;  // narrower products do not exist
  const int rounds = ceil_div(ceil_div(rows, kGroupedTokens) * weight_tiles, num_sms);
  const int token_tiles = std::max(1, rounds * num_sms / weight_tiles);
  const int tokens = ceil_div(ceil_div(rows, token_tiles), kColumnUnit) * kColumnUnit;
  return std::clamp(tokens, kLeast, kGroupedTokens);
}

/// Entries per tile of a group of `count` entries that the sort gave `tiles` tiles: equally many,
/// as far as whole columns of the product allow. The last tile is never empty, because no tile is
/// longer than what the sort counted with.
constexpr int tile_tokens(int count, int tiles) {
  constexpr int kColumnUnit = 8;
  return ceil_div(ceil_div(count, tiles), kColumnUnit) * kColumnUnit;
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
  size_t taken = 0;        // [kGroupedLaunches]
  size_t ordered = 0;      // [rows, hidden] BF16, for FP8 weights
  constexpr size_t bytes() const {
    return inner + results + histogram + places + source_rows + tables + taken + ordered;
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
      .tables = 3 * align_scratch((experts + 2) * ints),
      .taken = align_scratch(kGroupedLaunches * ints),
      .ordered =
          shape.routed == DType::kF8E4M3 || shape.shared == DType::kF8E4M3
              ? align_scratch(static_cast<size_t>(rows) * static_cast<size_t>(shape.hidden) * bf16)
              : 0};
}

}  // namespace tessera::cuda::moe
