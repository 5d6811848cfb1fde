// SPDX-License-Identifier: Apache-2.0
// Which mixer kernel runs, and how the one-launch mixer cuts both weight matrices over its blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "cuda/gpu_spec.h"

namespace tessera::cuda {

/// What the choice depends on.
struct MixerShape {
  int branches = 0;
  int hidden = 0;
  int rank = 0;
  DType down = DType::kBF16;
  DType up = DType::kBF16;
  DType inject = DType::kBF16;  // of `down` in the final mixer

  bool operator==(const MixerShape&) const = default;
};

/// Cut of the one-launch mixer. Block (group, slice) holds K slice `slice` of the rows of `group`
/// of the down matrix, and hidden / blocks columns, all branches, of the up matrix. Both are tiles
/// of 16 weight rows; the K of a tile is split over `splits` warps.
struct MixerTile {
  int hidden;
  int rank;
  int groups;
  int slices;
  int splits;

  static constexpr int kBranches = 4;
  static constexpr int kRowTile = 8;      // activation rows of one tensor core product
  static constexpr int kWeightTile = 16;  // weight rows of one tensor core product
  static constexpr int kChunk = 32;       // K values of two products: 16 bytes for each of 4 lanes
  static constexpr int kUnit = 8;         // BF16 values of 16 bytes

  constexpr int blocks() const { return groups * slices; }
  constexpr int wide() const { return kBranches * hidden; }
  constexpr int tiles() const { return rank_rows() / kWeightTile; }
  constexpr int warps() const { return tiles() * splits; }
  /// Down: K values and rows of a block. Of the inject rows a group has an equal part too.
  constexpr int slice() const { return wide() / slices; }
  constexpr int rank_rows() const { return rank / groups; }
  constexpr int inject_rows() const { return kBranches / groups; }
  constexpr int down_steps() const { return slice() / kChunk / splits; }
  /// Up: columns and rows of a block.
  constexpr int columns() const { return hidden / blocks(); }
  constexpr int up_rows() const { return columns() * kBranches; }
  constexpr int up_steps() const { return rank / kChunk / splits; }
  /// 16-byte units of the down result of one row.
  constexpr int low_units() const { return rank / kUnit; }

  constexpr bool divides() const {
    return rank % (groups * kWeightTile) == 0 && kBranches % groups == 0 &&
           wide() % (slices * splits * kChunk) == 0 && slices <= 32 && hidden % blocks() == 0 &&
           up_rows() == rank_rows() && rank % (splits * kChunk) == 0;
  }
};

/// The released model, and the sizes of the small test models.
inline constexpr std::array kMixerTiles = {
    MixerTile{.hidden = 2560, .rank = 320, .groups = 4, .slices = 32, .splits = 2},
    MixerTile{.hidden = 256, .rank = 32, .groups = 1, .slices = 32, .splits = 1},
    MixerTile{.hidden = 128, .rank = 32, .groups = 1, .slices = 16, .splits = 1}};
static_assert([] {
  for (const MixerTile& tile : kMixerTiles)
    if (!tile.divides()) return false;
  return true;
}());

/// Rows that lie in shared memory together.
inline constexpr int kMixerRoundRows = 32;
/// Rows of one launch.
inline constexpr int kMixerMostRows = 256;
/// Two blocks share an SM, so the weights of the next mixer may load while this one ends.
inline constexpr int kMixerBlocksPerSm = 2;

/// Where the blocks hand values to each other, in bytes from the start of memory that is zero at
/// first and between launches (but for one of the two low buffers).
struct MixerMemory {
  size_t launches;  // uint32 [blocks], each block counts its launches: which low buffer is in use
  size_t low;       // BF16 [2][most rows][rank]: the down product after SiLU
  size_t partial;   // float [most rows][rank / 8][slices][8]: sums over one slice
  size_t inject;    // float [most rows][slices][branches]
  size_t total;

  constexpr explicit MixerMemory(const MixerTile& tile) {
    constexpr size_t kAlign = 256, kRows = kMixerMostRows;
    const auto rank = static_cast<size_t>(tile.rank), slices = static_cast<size_t>(tile.slices);
    size_t at = 0;
    const auto take = [&at](size_t bytes) {
      const size_t start = at;
      at += (bytes + kAlign - 1) / kAlign * kAlign;
      return start;
    };
    launches = take(static_cast<size_t>(tile.blocks()) * sizeof(uint32_t));
    low = take(2 * kRows * rank * sizeof(uint16_t));
    partial = take(kRows * rank * slices * sizeof(float));
    inject = take(kRows * slices * MixerTile::kBranches * sizeof(float));
    total = at;
  }
};

/// Prompts of the released rank: the library multiplies with the down matrix, finish_down gives its
/// sums the form of operand tiles, gated_up multiplies these with the up matrix.
struct PromptMixer {
  static constexpr int kBranches = MixerTile::kBranches;
  static constexpr int kRank = 320;
  static constexpr int kTileRows = 64;  // activation rows of one warpgroup product
  static constexpr int kStepK = 64;     // K of an operand tile
  static constexpr int kTileBytes = kTileRows * kStepK * 2;
  static constexpr int kSteps = kRank / kStepK;

  /// gated_up: two consumer warpgroups with 32 columns of all branches each, a producer warp.
  static constexpr int kGroups = 2;
  static constexpr int kGroupColumns = 32;
  static constexpr int kGroupWeights = kGroupColumns * kBranches;
  static constexpr int kColumns = kGroups * kGroupColumns;
  static constexpr int kStages = 8;  // the next row tile may come while the second group reads one
  static constexpr int kUpThreads = kGroups * 128 + 32;

  /// finish_down: 16 rows of a block, 64 bytes of every row per load.
  static constexpr int kFinishRows = 16;
  static constexpr int kFinishThreads = 256;
  static constexpr int kFinishBlocksPerSm = 3;
  static constexpr int kFinishLoads = 4;
  static constexpr int kChunk = MixerTile::kChunk;
  /// K that a block of finish_down covers with one round of loads.
  static constexpr int kFinishK = kFinishThreads / 32 * kFinishLoads * kChunk;

  /// Rows of one pass through the scratch: any number gives the same bits.
  static constexpr int kMostRows = 8192;

  static constexpr int row_tiles(int rows) { return (rows + kTileRows - 1) / kTileRows; }
  static constexpr size_t low_bytes(int rows) {
    return static_cast<size_t>(row_tiles(rows)) * kSteps * kTileBytes;
  }
  /// Blocks of gated_up that share the row tiles of some columns: one block per SM.
  static constexpr int row_parts(int rows, int hidden, int num_sms) {
    const int fit = num_sms / (hidden / kColumns);
    const int parts = fit > 1 ? fit : 1;
    return row_tiles(rows) < parts ? row_tiles(rows) : parts;
  }
};
static_assert(PromptMixer::kRank % PromptMixer::kStepK == 0);
static_assert(PromptMixer::kTileRows % PromptMixer::kFinishRows == 0);

/// Empty when these kernels run prompts of this shape, else the reason.
inline const char* supports_mixer_prompt(const MixerShape& shape, const GpuSpec& gpu) {
  if (!gpu.is_hopper()) return "needs compute capability 9.0";
  if (shape.branches != PromptMixer::kBranches) return "needs 4 branches";
  if (shape.rank != PromptMixer::kRank) return "needs the released rank";
  if (shape.up != DType::kBF16 || shape.inject != DType::kBF16) return "needs BF16 weights";
  if (shape.hidden % PromptMixer::kColumns != 0 ||
      PromptMixer::kBranches * shape.hidden % PromptMixer::kFinishK != 0)
    return "no whole tiles of this hidden size";
  return "";
}

/// Index of the tile, -1 if there is none for these sizes.
constexpr int plan_mixer(const MixerShape& shape) {
  for (int tile = 0; tile < static_cast<int>(kMixerTiles.size()); ++tile) {
    const MixerTile& candidate = kMixerTiles[static_cast<size_t>(tile)];
    if (candidate.hidden == shape.hidden && candidate.rank == shape.rank) return tile;
  }
  return -1;
}

/// Empty when the one-launch mixer runs decode rows of this shape, else the reason.
inline const char* supports_mixer_sm90(const MixerShape& shape, const GpuSpec& gpu) {
  if (!gpu.is_hopper()) return "needs compute capability 9.0";
  if (shape.branches != MixerTile::kBranches) return "needs 4 branches";
  if (shape.down != DType::kBF16 || shape.up != DType::kBF16 || shape.inject != DType::kBF16)
    return "needs BF16 weights";
  const int tile = plan_mixer(shape);
  if (tile < 0) return "no tile for this hidden size and rank";
  // All blocks wait for each other, so they must fit on the device together.
  if (gpu.num_sms * kMixerBlocksPerSm < kMixerTiles[static_cast<size_t>(tile)].blocks())
    return "too few SMs to hold all blocks at once";
  return "";
}

}  // namespace tessera::cuda
