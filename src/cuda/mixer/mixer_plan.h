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
