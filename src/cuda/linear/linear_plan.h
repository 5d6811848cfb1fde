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
  static constexpr int kStages = 6;     // of each warp's ring, all but one of them in flight
  static constexpr int kTileRows = 16;  // weight rows of one product instruction
  static constexpr int kColumns = 8;    // activation rows of one product instruction
  static constexpr int kSliceBytes = 128;
  static constexpr int kStageBytes = kTileRows * kSliceBytes;
  static constexpr int kRoundBytes =
      kWarps * kSliceBytes;  // of a weight row, once around the warps
};

/// `kTilesIn` tiles of 16 weight rows keep their sums in registers while K passes, for
/// `kColumnTilesIn` tiles of 8 activation rows. E4M3 weights need more registers for activations.
template <int kTilesIn, int kColumnTilesIn, int kF8TilesIn>
struct StreamConfig : StreamGeometry {
  static constexpr int kTiles = kTilesIn;
  static constexpr int kColumnTiles = kColumnTilesIn;
  static constexpr int kF8Tiles = kF8TilesIn;
  static constexpr int kPassRows = kColumnTiles * kColumns;
  static constexpr bool kLoadAhead = kColumnTiles <= 2;  // activations one slice early
  static constexpr int kSumTiles = kColumnTiles == 1 ? 4 : kColumnTiles == 2 ? 2 : 1;
  static constexpr int kSumRows = kSumTiles * kTileRows;  // added over the warps at once
  static constexpr int kSumStride = kSumRows + 4;         // four columns apart: other banks
  static constexpr size_t kSharedBytes =
      size_t{kWarps} * (kStages * kStageBytes + kPassRows * kSumStride * sizeof(float));

  static_assert(kTiles % kSumTiles == 0 && kF8Tiles % kSumTiles == 0);
  static constexpr int panel_rows(DType dtype) {
    return (dtype == DType::kF8E4M3 ? kF8Tiles : kTiles) * kTileRows;
  }
};
using StreamUpTo8 = StreamConfig<8, 1, 8>;
using StreamUpTo16 = StreamConfig<8, 2, 8>;
using StreamUpTo32 = StreamConfig<6, 4, 4>;

/// Activation rows of one pass over the weights, for each instance.
inline constexpr std::array kStreamPassRows = {StreamUpTo8::kPassRows, StreamUpTo16::kPassRows,
                                               StreamUpTo32::kPassRows};
inline constexpr size_t kStreamSharedBytes =
    std::max({StreamUpTo8::kSharedBytes, StreamUpTo16::kSharedBytes, StreamUpTo32::kSharedBytes});
inline constexpr int kMaxStreamParts = 8;

/// Grid: passes x blocks; neighbouring blocks share weight rows through the L2.
struct StreamPlan {
  int config = 0;          // index into kStreamPassRows
  int passes = 0;          // over the activation rows
  int rows_per_block = 0;  // weight rows, of all parts one after the other
  int blocks = 0;
};

/// Every block gets the same number of weight rows, to within one: no half-empty last wave.
constexpr StreamPlan plan_stream(int total_out, int rows, const GpuSpec& gpu) {
  StreamPlan plan;
  while (plan.config + 1 < static_cast<int>(kStreamPassRows.size()) &&
         kStreamPassRows[static_cast<size_t>(plan.config)] < rows)
    ++plan.config;
  plan.passes = divide_up(rows, kStreamPassRows[static_cast<size_t>(plan.config)]);
  if (total_out == 0 || plan.passes == 0) return plan;
  const int groups = std::max(1, gpu.num_sms / plan.passes);
  plan.rows_per_block = divide_up(total_out, groups);
  plan.blocks = divide_up(total_out, plan.rows_per_block);
  return plan;
}

/// What all instances of the held kernel share: activations of a warp's slices stay in registers
/// while tiles of 16 weight rows pass. Long rows are split over the blocks of a cluster.
struct HeldGeometry : StreamGeometry {
  static constexpr int kBf16Slices = 5;  // of a row, for one warp, at most
  static constexpr int kF8Slices = 3;
  static constexpr int kElements = kWarps * kBf16Slices * kSliceBytes / 2;  // for one block
  static constexpr int kSplit = 4;       // blocks of a cluster that share longer rows
  static constexpr int kSplitTiles = 8;  // of such a cluster: sums are exchanged once
  static constexpr size_t kAlignment = 128;
  static_assert(kElements <= kWarps * kF8Slices * kSliceBytes);
};

template <int kColumnTilesIn, DType kTypeIn>
struct HeldConfig : HeldGeometry {
  static constexpr DType kType = kTypeIn;
  static constexpr int kColumnTiles = kColumnTilesIn;
  static constexpr int kSlices = kType == DType::kF8E4M3 ? kF8Slices : kBf16Slices;
  static constexpr int kPassRows = kColumnTiles * kColumns;
  /// Two where registers allow: the next kernel's block finds room.
  static constexpr int kBlocksPerSm = kColumnTiles <= (kType == DType::kF8E4M3 ? 1 : 2) ? 2 : 1;
  /// One buffer costs a barrier per tile, two may not leave room for a neighbour.
  static constexpr int kSumBuffers = kColumnTiles == 2 ? 1 : 2;
  static constexpr int kTileOutputs = kTileRows * kPassRows;
  static constexpr size_t kSharedBytes =
      size_t{kWarps} * kStages * kStageBytes +
      sizeof(float) * (kSumBuffers * kWarps + kSplitTiles) * kTileOutputs + kAlignment;
};
using HeldUpTo8 = HeldConfig<1, DType::kBF16>;
using HeldUpTo16 = HeldConfig<2, DType::kBF16>;
using HeldUpTo32 = HeldConfig<4, DType::kBF16>;
using HeldF8UpTo8 = HeldConfig<1, DType::kF8E4M3>;
using HeldF8UpTo16 = HeldConfig<2, DType::kF8E4M3>;

inline constexpr size_t kHeldSharedBytes =
    std::max({HeldUpTo8::kSharedBytes, HeldUpTo16::kSharedBytes, HeldUpTo32::kSharedBytes});

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

constexpr HeldPlan plan_held(int total_tiles, int rows, int in_features, DType type,
                             const GpuSpec& gpu) {
  HeldPlan plan;
  plan.pass_rows = rows <= HeldUpTo8::kPassRows ? HeldUpTo8::kPassRows
                   : rows <= HeldUpTo16::kPassRows || type == DType::kF8E4M3
                       ? HeldUpTo16::kPassRows
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

/// Empty when the held kernel takes rows of this length (of weights that the streaming kernel can
/// read), else why not.
inline std::string_view supports_held(int in_features, const GpuSpec& gpu) {
  if (held_split(in_features) == 0) return "activations of such rows do not fit into registers";
  if (held_split(in_features) > 1 && gpu.compute_major < 9) return "clusters need sm_90";
  if (gpu.shared_bytes_per_block < kHeldSharedBytes) return "too little shared memory";
  return {};
}

constexpr bool aligned_to(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/// Empty when the streaming kernel can read this weight, else why not.
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
