// SPDX-License-Identifier: Apache-2.0
// How a block selection is launched: which kernels, how wide a row of scores is, how many rows are
// scored at a time. Plain numbers, tested without a device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "cuda/gpu_spec.h"
#include "ops/qsa.h"

namespace tessera::cuda {

/// Geometry of the tensor core kernels: the keys of a page are the 16 rows of one MMA.
struct FastScoreShape {
  static constexpr int kHeads = 4;
  static constexpr int kDim = 128;
  static constexpr int kPageKeys = 16;
};

inline constexpr int kScoreThreads = 256;
inline constexpr int kScoreWarps = kScoreThreads / 32;
/// Of prompt scores. Decode scores leave room for the blocks of the choice, which then wait on the
/// processors already when the last score is written.
inline constexpr int kScoreBlocksPerSm = 2;
inline constexpr int kDecodeScoreBlocksPerSm = 1;
/// Prompt rows and keys of one tile.
inline constexpr int kTileRows = 64;
inline constexpr int kTileKeys = 64;
/// Prompt rows are scored in passes whose scores fit in this.
inline constexpr int64_t kPrefillScoreBytes = int64_t{64} << 20;

/// Keys that the choice takes or drops together by their largest one.
inline constexpr int kGroupKeys = FastScoreShape::kPageKeys;
/// The choice of a row's best blocks: one thread block, whose threads hold the largest keys of all
/// groups and then one of the chosen groups each.
inline constexpr int kChooseThreads = 512;
inline constexpr int kChooseBlocksPerSm = 3;
inline constexpr int kTopsPerThread = 8;
inline constexpr int kFastBudget = kChooseThreads;
inline constexpr int64_t kFastBlocks = int64_t{kChooseThreads} * kTopsPerThread * kGroupKeys;

struct SelectPlan {
  bool fast_scores = false;
  bool fast_choice = false;
  int64_t capacity = 0;  // blocks a sequence may have
  int64_t stride = 0;    // scores from row to row
  int rows_per_pass = 0;

  int64_t num_scores() const { return stride * rows_per_pass; }
  /// Scores and the largest one of each group.
  int64_t scratch_bytes() const {
    return (num_scores() + num_scores() / kGroupKeys) * int64_t{sizeof(uint32_t)};
  }
};

/// Empty when the tensor core kernels can score, else the reason why not.
constexpr std::string_view supports_fast_scores(const ops::QsaShape& shape,
                                                const ops::PageRef& keys) {
  constexpr size_t kVector = 16;
  if (shape.index_heads != FastScoreShape::kHeads) return "index heads are not 4";
  if (shape.index_dim != FastScoreShape::kDim) return "index dim is not 128";
  if (shape.blocks_per_page() != FastScoreShape::kPageKeys) return "a page has not 16 blocks";
  if (keys.dtype != DType::kBF16) return "index keys are not BF16";
  if (keys.page_stride % kVector != 0 || keys.offset % kVector != 0)
    return "pages are not 16-byte aligned";
  return {};
}

/// Empty when the choice can go by groups, else the reason why not. The scores must be fast ones:
/// others have no largest keys.
constexpr std::string_view supports_fast_choice(int64_t capacity, int budget) {
  if (capacity > kFastBlocks) return "more groups than a thread block holds";
  if (budget > kFastBudget) return "more chosen groups than threads";
  return {};
}

constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

/// `capacity`: blocks that a sequence of this launch, or of a repetition of it, may have.
constexpr SelectPlan plan_select(const ops::QsaShape& shape, const ops::PageRef& keys,
                                 ops::Role role, int num_rows, int64_t capacity, int budget) {
  SelectPlan plan;
  plan.fast_scores = supports_fast_scores(shape, keys).empty();
  plan.capacity = capacity;
  plan.stride = round_up(std::max<int64_t>(capacity, 1), kTileKeys);
  plan.fast_choice = plan.fast_scores && supports_fast_choice(capacity, budget).empty();
  plan.rows_per_pass = num_rows;
  if (role == ops::Role::kPrefill) {
    const int64_t row_bytes = plan.stride * int64_t{sizeof(uint32_t)};
    const int64_t rows = kPrefillScoreBytes / row_bytes / kTileRows * kTileRows;
    plan.rows_per_pass =
        static_cast<int>(std::min<int64_t>(num_rows, std::max<int64_t>(rows, kTileRows)));
  }
  return plan;
}

/// Blocks that score a tile of prompt rows: as many as fill the device but not one more, which
/// would wait for a second turn as long as the first; one key tile each at most.
constexpr int prefill_splits(int num_tiles, int64_t visible, const GpuSpec& gpu) {
  const int64_t key_tiles = round_up(visible, kTileKeys) / kTileKeys;
  const int64_t resident = int64_t{kScoreBlocksPerSm} * gpu.num_sms;
  return static_cast<int>(std::max<int64_t>(1, std::min(resident / num_tiles, key_tiles)));
}

}  // namespace tessera::cuda
