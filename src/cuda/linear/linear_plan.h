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

/// What all instances of the streaming kernels share. A weight row, or a part of it, is cut into
/// slices of one memory line; warp w takes slices w, w + kWarps, ..: the order of summation depends
/// on the row's length and type alone.
struct StreamGeometry {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStages = 6;     // of each warp's ring, all but one of them in flight
  static constexpr int kTileRows = 16;  // weight rows of one product instruction
  static constexpr int kColumns = 8;    // activation rows of one product instruction
  static constexpr int kSliceBytes = 128;
  static constexpr int kStageBytes = kTileRows * kSliceBytes;
  static constexpr int kStrideBytes = kWarps * kSliceBytes;  // from a warp's slice to its next
  static constexpr int kBf16Slices = 5;  // whose activations a warp holds, at most
  static constexpr int kF8Slices = 3;
  static constexpr size_t kRingBytes = size_t{kWarps} * kStages * kStageBytes;
};

inline constexpr int kMaxStreamParts = 8;

/// What all instances of the held kernel (BF16) share: activations of a warp's slices stay in
/// registers while tiles of 16 weight rows pass. Long rows are split over the blocks of a cluster.
struct HeldGeometry : StreamGeometry {
  static constexpr int kElements = kWarps * kBf16Slices * kSliceBytes / 2;  // for one block
  static constexpr int kSplit = 4;       // blocks of a cluster that share longer rows
  static constexpr int kSplitTiles = 8;  // of such a cluster: sums are exchanged once
  static constexpr size_t kAlignment = 128;
};

template <int kColumnTilesIn>
struct HeldConfig : HeldGeometry {
  static constexpr DType kType = DType::kBF16;
  static constexpr int kColumnTiles = kColumnTilesIn;
  static constexpr int kSlices = kBf16Slices;
  static constexpr int kPassRows = kColumnTiles * kColumns;
  /// Two where registers allow: the next kernel's block finds room.
  static constexpr int kBlocksPerSm = kColumnTiles <= 2 ? 2 : 1;
  static constexpr int kTileOutputs = kTileRows * kPassRows;
  /// Two buffers of sums save a barrier per tile; where rows are split, the second one's room is
  /// for the exchange.
  static_assert(kSplitTiles == kWarps);
  static constexpr size_t kSharedBytes =
      kRingBytes + 2 * sizeof(float) * kWarps * kTileOutputs + kAlignment;
};
using HeldUpTo8 = HeldConfig<1>;
using HeldUpTo16 = HeldConfig<2>;
using HeldUpTo32 = HeldConfig<4>;

/// Blocks that share a weight row: of its length alone, for the sums depend on it. 0: too long.
constexpr int held_split(int in_features) {
  if (in_features <= HeldGeometry::kElements) return 1;
  return in_features <= HeldGeometry::kElements * HeldGeometry::kSplit ? HeldGeometry::kSplit : 0;
}

/// Grid: (passes x split) x groups; a group is the cluster of blocks that share weight rows.
struct HeldPlan {
  int pass_rows = 0;
  int passes = 0;
  int split = 1;
  int tiles_per_group = 0;
  int groups = 0;
};

constexpr HeldPlan plan_held(int total_tiles, int rows, int in_features, const GpuSpec& gpu) {
  HeldPlan plan;
  plan.pass_rows = rows <= HeldUpTo8::kPassRows    ? HeldUpTo8::kPassRows
                   : rows <= HeldUpTo16::kPassRows ? HeldUpTo16::kPassRows
                                                   : HeldUpTo32::kPassRows;
  plan.passes = divide_up(rows, plan.pass_rows);
  plan.split = held_split(in_features);
  if (total_tiles == 0 || plan.passes == 0) return plan;
  const int groups = std::max(1, gpu.num_sms / (plan.passes * plan.split));
  plan.tiles_per_group = divide_up(total_tiles, groups);
  if (plan.split > 1)
    plan.tiles_per_group = std::min(plan.tiles_per_group, HeldGeometry::kSplitTiles);
  plan.groups = divide_up(total_tiles, plan.tiles_per_group);
  return plan;
}

/// Why the rounds kernel takes rows of this type and length (which the streaming kernels can read),
/// empty when the held kernel does.
inline std::string_view supports_held(DType type, int in_features, const GpuSpec& gpu) {
  if (type != DType::kBF16) return "weights are not BF16";
  if (held_split(in_features) == 0) return "activations of such rows do not fit into registers";
  if (held_split(in_features) > 1 && gpu.compute_major < 9) return "clusters need sm_90";
  return {};
}

/// What all instances of the rounds kernel share: long rows come in parts of equal length, one
/// after the other in the same block. Sums of the warps are added in pairs, neighbours first, then
/// those of the rounds in their order.
struct RoundsGeometry : StreamGeometry {
  static constexpr int kBatchTiles = 8;  // that pass before the next round's activations come
};

template <int kColumnTilesIn, DType kTypeIn>
struct RoundsConfig : RoundsGeometry {
  static constexpr DType kType = kTypeIn;
  static constexpr int kColumnTiles = kColumnTilesIn;
  static constexpr int kSlices = kType == DType::kF8E4M3 ? kF8Slices : kBf16Slices;
  static constexpr int kPassRows = kColumnTiles * kColumns;
  static constexpr int kTilePairs = kPassRows * kTileRows / 2;  // of a tile's sums
  /// Of one launch, where registers allow: decoding E4M3 takes more than the warps of one block.
  static constexpr int kBlocksPerSm = kType == DType::kF8E4M3 && kColumnTiles == 1 ? 2 : 1;
  static constexpr size_t kSharedBytes = kRingBytes + 2 * kWarps * kTilePairs * 2 * sizeof(float);
};
using RoundsF8UpTo8 = RoundsConfig<1, DType::kF8E4M3>;
using RoundsF8UpTo16 = RoundsConfig<2, DType::kF8E4M3>;
using RoundsBf16 = RoundsConfig<2, DType::kBF16>;

inline constexpr size_t kStreamSharedBytes =
    std::max({HeldUpTo8::kSharedBytes, HeldUpTo16::kSharedBytes, HeldUpTo32::kSharedBytes,
              RoundsF8UpTo8::kSharedBytes, RoundsF8UpTo16::kSharedBytes, RoundsBf16::kSharedBytes});

/// Rounds of a weight row: of its length and type alone, for the sums depend on it.
constexpr int rounds_of(int in_features, DType type) {
  const bool is_f8 = type == DType::kF8E4M3;
  const int slices = divide_up(is_f8 ? in_features : 2 * in_features, StreamGeometry::kSliceBytes);
  return divide_up(slices, StreamGeometry::kWarps *
                               (is_f8 ? StreamGeometry::kF8Slices : StreamGeometry::kBf16Slices));
}

/// Grid: passes x blocks; neighbouring blocks share weight rows through the L2.
struct RoundsPlan {
  int pass_rows = 0;
  int passes = 0;          // over the activation rows
  int rows_per_block = 0;  // weight rows, of all parts one after the other
  int blocks = 0;
};

/// Every block gets the same number of weight rows, to within one: no half-empty last wave.
constexpr RoundsPlan plan_rounds(int total_rows, int rows, DType type, const GpuSpec& gpu) {
  const bool few = type == DType::kF8E4M3 && rows <= RoundsF8UpTo8::kPassRows;
  RoundsPlan plan;
  plan.pass_rows = few ? RoundsF8UpTo8::kPassRows : RoundsF8UpTo16::kPassRows;
  plan.passes = divide_up(rows, plan.pass_rows);
  if (total_rows == 0 || plan.passes == 0) return plan;
  const int per_sm = few ? RoundsF8UpTo8::kBlocksPerSm : RoundsF8UpTo16::kBlocksPerSm;
  const int blocks = std::max(1, gpu.num_sms * per_sm / plan.passes);
  plan.rows_per_block = divide_up(total_rows, blocks);
  plan.blocks = divide_up(total_rows, plan.rows_per_block);
  return plan;
}

constexpr bool aligned_to(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/// Empty when the streaming kernels can read this weight, else why not.
inline std::string_view supports_stream(const ops::LinearWeight& weight, const void* x,
                                        const GpuSpec& gpu) {
  constexpr size_t kAccessBytes = 16;
  if (gpu.compute_major < 8) return "asynchronous copies need sm_80";
  if (gpu.shared_bytes_per_block < kStreamSharedBytes) return "too little shared memory";
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
