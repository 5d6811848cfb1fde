// SPDX-License-Identifier: Apache-2.0
// How a product with stored weights is launched: numbers only, no CUDA call.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cuda/gpu_spec.h"
#include "ops/linear.h"

namespace tessera::cuda {

constexpr int divide_up(int value, int by) { return (value + by - 1) / by; }

/// What all instances of the streaming kernel share. A weight row is cut into slices of one memory
/// line; warp w takes slices w, w + kWarps, ..: the order of summation depends on the row's length
/// alone.
struct StreamGeometry {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStages = 6;     // of a ring, for each of its warps; one is being read
  static constexpr int kTileRows = 16;  // weight rows of one product instruction
  static constexpr int kColumns = 8;    // activation rows of one product instruction
  static constexpr int kSliceBytes = 128;
  static constexpr int kStageBytes = kTileRows * kSliceBytes;
  static constexpr int kRoundBytes =
      kWarps * kSliceBytes;  // of a weight row, once around the warps
};

inline constexpr int kMaxStreamParts = 8;

/// What all instances of the held kernel share: activations of a warp's slices stay in registers
/// while tiles of 16 weight rows pass. Long rows are split in pieces of equal length, one after the
/// other. The slices w, w + kChains, .. of a split make chain w: one block has all eight chains, or
/// the blocks of a cluster have some each. Sums of chains are added in pairs, neighbours first,
/// then those of splits in their order.
struct HeldGeometry : StreamGeometry {
  static constexpr int kChains = kWarps;
  static constexpr int kBf16Slices = 5;  // of a chain, at most
  static constexpr int kF8Slices = 3;
  /// Weight tiles that pass before the next split's activations come; after them the blocks of a
  /// cluster exchange sums.
  static constexpr int kBatchTiles = 8;
  static constexpr size_t kAlignment = 128;
};

/// `kColumnTilesIn` tiles of activation rows per warp, for `kGroupsIn` warps that share a chain's
/// weights. As many blocks form a cluster and share the chains, so a warp's registers hold as much
/// as ever, and weights go to as many activation rows as the cluster holds.
template <int kColumnTilesIn, DType kTypeIn, int kGroupsIn = 1>
struct HeldConfig : HeldGeometry {
  static constexpr DType kType = kTypeIn;
  static constexpr int kColumnTiles = kColumnTilesIn;
  static constexpr int kGroups = kGroupsIn;
  static constexpr int kBlockChains = kChains / kGroups;  // of one block
  static constexpr int kSlices = kType == DType::kF8E4M3 ? kF8Slices : kBf16Slices;
  static constexpr int kPassTiles = kGroups * kColumnTiles;
  static constexpr int kPassRows = kPassTiles * kColumns;
  static constexpr int kTilePairs = kPassRows * kTileRows / 2;  // of a tile's sums
  static constexpr int kRingStages = kStages * kGroups;         // of a chain
  /// Two where registers allow: the next kernel's block finds room.
  static constexpr int kBlocksPerSm =
      kGroups == 1 && kColumnTiles <= (kType == DType::kF8E4M3 ? 1 : 2) ? 2 : 1;
  /// Of one launch: decoding E4M3 needs more warps than the second block's early start is worth.
  static constexpr int kLaunchBlocksPerSm = kType == DType::kF8E4M3 ? kBlocksPerSm : 1;
  /// A second buffer saves a barrier per tile where rows are not split.
  static constexpr int kSumBuffers = 2;
  static constexpr size_t kTileSumBytes = sizeof(float) * kTileRows * kPassRows;
  /// In launches without clusters, and in others.
  static constexpr size_t kLocalBytes = size_t{kBlockChains} * kRingStages * kStageBytes +
                                        kSumBuffers * kBlockChains * kTileSumBytes + kAlignment;
  static constexpr size_t kSharedBytes = kLocalBytes + kBatchTiles * kTileSumBytes;
  static_assert(kChains % kGroups == 0 && kBatchTiles % kSumBuffers == 0);
};
using HeldUpTo8 = HeldConfig<1, DType::kBF16>;
using HeldUpTo16 = HeldConfig<2, DType::kBF16>;
using HeldUpTo32 = HeldConfig<4, DType::kBF16>;
using HeldUpTo64 = HeldConfig<4, DType::kBF16, 2>;
using HeldUpTo128 = HeldConfig<4, DType::kBF16, 4>;
using HeldF8UpTo8 = HeldConfig<1, DType::kF8E4M3>;
using HeldF8UpTo16 = HeldConfig<2, DType::kF8E4M3>;
using HeldF8UpTo32 = HeldConfig<2, DType::kF8E4M3, 2>;
using HeldF8UpTo64 = HeldConfig<2, DType::kF8E4M3, 4>;

/// Activation rows of one pass over the weights and the warps that share them, for each instance.
struct HeldInstance {
  int pass_rows;
  int groups;
  int blocks_per_sm;
  size_t shared_bytes;
};
template <class Config>
inline constexpr HeldInstance kHeldInstance{Config::kPassRows, Config::kGroups,
                                            Config::kLaunchBlocksPerSm, Config::kSharedBytes};
inline constexpr std::array kHeldBf16 = {kHeldInstance<HeldUpTo8>, kHeldInstance<HeldUpTo16>,
                                         kHeldInstance<HeldUpTo32>, kHeldInstance<HeldUpTo64>,
                                         kHeldInstance<HeldUpTo128>};
inline constexpr std::array kHeldF8 = {kHeldInstance<HeldF8UpTo8>, kHeldInstance<HeldF8UpTo16>,
                                       kHeldInstance<HeldF8UpTo32>, kHeldInstance<HeldF8UpTo64>};

/// Of the instances without clusters, which every row length has.
inline constexpr size_t kHeldSharedBytes =
    std::max({HeldUpTo32::kLocalBytes, HeldF8UpTo16::kLocalBytes});

/// Splits of a weight row: of its length and type alone, for the sums depend on it.
constexpr int held_splits(int in_features, DType type) {
  const bool is_f8 = type == DType::kF8E4M3;
  const int slices = divide_up(is_f8 ? in_features : 2 * in_features, HeldGeometry::kSliceBytes);
  return divide_up(slices, HeldGeometry::kChains *
                               (is_f8 ? HeldGeometry::kF8Slices : HeldGeometry::kBf16Slices));
}

/// Grid: (passes x cluster) x teams; a team is the cluster of blocks that share weight rows.
struct HeldPlan {
  int config = 0;  // index into kHeldBf16 or kHeldF8
  int passes = 0;  // over the activation rows
  int cluster = 1;
  int blocks_per_sm = 1;  // of this launch
  int rows_per_team = 0;  // weight rows, of all parts one after the other
  int teams = 0;
};

/// The instance for so many rows.
constexpr HeldPlan choose_held(int rows, DType type, const GpuSpec& gpu) {
  HeldPlan plan;
  const auto choose = [&](const auto& instances) {
    const auto at = [&](int config) { return instances[static_cast<size_t>(config)]; };
    const auto fits = [&](const HeldInstance& instance) {
      return instance.groups == 1 ||
             (gpu.compute_major >= 9 && instance.shared_bytes <= gpu.shared_bytes_per_block);
    };
    while (plan.config + 1 < static_cast<int>(instances.size()) &&
           at(plan.config).pass_rows < rows && fits(at(plan.config + 1)))
      ++plan.config;
    plan.passes = divide_up(rows, at(plan.config).pass_rows);
    plan.cluster = at(plan.config).groups;
    plan.blocks_per_sm = at(plan.config).blocks_per_sm;
  };
  if (type == DType::kF8E4M3)
    choose(kHeldF8);
  else
    choose(kHeldBf16);
  return plan;
}

/// Every team gets the same number of weight rows, to within one: no half-empty last wave.
/// `clusters`: how many of the chosen size run at once with one block per SM.
constexpr HeldPlan plan_held(HeldPlan plan, int total_rows, int clusters) {
  if (total_rows == 0 || plan.passes == 0) return plan;
  const int teams = std::max(1, clusters * plan.blocks_per_sm / plan.passes);
  plan.rows_per_team = divide_up(total_rows, teams);
  plan.teams = divide_up(total_rows, plan.rows_per_team);
  return plan;
}

constexpr bool aligned_to(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/// Empty when the streaming kernel can read this weight, else why not.
inline std::string_view supports_stream(const ops::LinearWeight& weight, const void* x,
                                        const GpuSpec& gpu) {
  constexpr size_t kAccessBytes = 16;
  if (gpu.compute_major < 8) return "asynchronous copies need sm_80";
  if (gpu.shared_bytes_per_block < kHeldSharedBytes) return "too little shared memory";
  if (weight.dtype != DType::kBF16 && weight.dtype != DType::kF8E4M3)
    return "weights are neither BF16 nor E4M3";
  if (weight.row_bytes() == 0 || weight.row_bytes() % StreamGeometry::kSliceBytes != 0)
    return "weight rows are no multiple of 128 bytes";
  if (!aligned_to(weight.data, kAccessBytes)) return "weights are not 16-byte aligned";
  if (!aligned_to(x, kAccessBytes)) return "activations are not 16-byte aligned";
  return {};
}

/// Empty when cuBLASLt takes this product, else why not. It must not depend on the number of rows:
/// a row's bits would.
inline std::string_view supports_library(const ops::LinearWeight& weight, const void* x,
                                         const void* y) {
  constexpr size_t kAccessBytes = 16;
  constexpr int kAccessElements = 8;
  if (weight.dtype != DType::kBF16 && weight.dtype != DType::kF8E4M3)
    return "weights are neither BF16 nor E4M3";
  if (weight.in_features % kAccessElements != 0 || weight.out_features % kAccessElements != 0)
    return "a size is no multiple of 8";
  if (!aligned_to(weight.data, kAccessBytes) || !aligned_to(x, kAccessBytes) ||
      !aligned_to(y, kAccessBytes))
    return "an operand is not 16-byte aligned";
  return {};
}

/// Any size and type: one warp per output, kRows activation rows at a time.
struct GenericLinearConfig {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = 8;
};

}  // namespace tessera::cuda
