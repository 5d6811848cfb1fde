// SPDX-License-Identifier: Apache-2.0
// Which mixer kernel runs, and how the one-launch mixer cuts both weight matrices over its blocks.
#pragma once

#include <array>
#include <cstddef>

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

/// Cut of the one-launch mixer. `clusters` clusters of kMixerRanks blocks: block `rank` of a
/// cluster holds K slice `rank` of rank / clusters rows of the down matrix (some clusters of inject
/// rows too), and hidden / blocks columns, all branches, of the up matrix.
struct MixerTile {
  int hidden;
  int rank;
  int clusters;
  int warps;

  static constexpr int kBranches = 4;
  static constexpr int kRanks = 8;        // blocks of a cluster
  static constexpr int kRowTile = 8;      // activation rows of one tensor core product
  static constexpr int kWeightTile = 16;  // weight rows of one tensor core product
  static constexpr int kChunk = 32;       // K values of two products: 16 bytes for each of 4 lanes

  constexpr int blocks() const { return clusters * kRanks; }
  constexpr int wide() const { return kBranches * hidden; }
  /// Down: K values of a block and its rows.
  constexpr int slice() const { return wide() / kRanks; }
  constexpr int rank_rows() const { return rank / clusters; }
  constexpr int inject_rows() const { return clusters < kBranches ? kBranches / clusters : 1; }
  constexpr int inject_clusters() const { return kBranches / inject_rows(); }
  constexpr int down_rows() const { return rank_rows() + inject_rows(); }
  constexpr int down_tiles() const { return (down_rows() + kWeightTile - 1) / kWeightTile; }
  constexpr int down_chunks() const { return slice() / kChunk; }
  constexpr int down_steps() const { return (down_chunks() + warps - 1) / warps; }
  /// Up: columns of a block; a weight tile is 4 columns of all branches; its K is split over
  /// up_splits() warps.
  constexpr int columns() const { return hidden / blocks(); }
  constexpr int up_rows() const { return columns() * kBranches; }
  constexpr int up_tiles() const { return up_rows() / kWeightTile; }
  constexpr int up_splits() const { return warps / up_tiles(); }
  constexpr int up_steps() const { return rank / kChunk / up_splits(); }

  constexpr bool divides() const {
    return wide() % (kRanks * kChunk) == 0 && rank % (clusters * 2) == 0 &&
           hidden % blocks() == 0 && up_rows() % kWeightTile == 0 && warps % up_tiles() == 0 &&
           up_splits() <= 2 && rank % (kChunk * up_splits()) == 0 &&
           (blocks() & (blocks() - 1)) == 0 && inject_rows() * inject_clusters() == kBranches &&
           inject_clusters() <= clusters;
  }
};

/// The released model, and the sizes of the small test models.
inline constexpr std::array kMixerTiles = {
    MixerTile{.hidden = 2560, .rank = 320, .clusters = 16, .warps = 10},
    MixerTile{.hidden = 256, .rank = 32, .clusters = 1, .warps = 8},
    MixerTile{.hidden = 128, .rank = 32, .clusters = 1, .warps = 4}};
static_assert([] {
  for (const MixerTile& tile : kMixerTiles)
    if (!tile.divides()) return false;
  return true;
}());

/// Rows of one pass through the reduction over the cluster.
inline constexpr int kMixerBlockRows = 32;
/// Two blocks share an SM, so the weights of the next mixer may load while this one ends.
inline constexpr int kMixerBlocksPerSm = 2;

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
  // All blocks wait for each other, so they must fit on the device together. Clusters lie inside a
  // group of SMs and leave some of it unused: a quarter at the most.
  const int places = gpu.num_sms * kMixerBlocksPerSm * 3 / 4;
  if (places < kMixerTiles[static_cast<size_t>(tile)].blocks())
    return "too few SMs to hold all blocks at once";
  return "";
}

}  // namespace tessera::cuda
