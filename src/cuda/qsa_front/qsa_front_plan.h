// SPDX-License-Identifier: Apache-2.0
// Which kernel of the QSA front runs and how many warps it gets: plain numbers, tested without a
// device.
#pragma once

#include <string_view>

#include "ops/qsa.h"

namespace tessera::cuda {

/// Geometry of the fast kernel: a lane holds eight neighbouring dims of a head.
struct FastFrontShape {
  static constexpr int kHeadDim = 256;   // one warp
  static constexpr int kIndexDim = 128;  // half a warp: index queries go in pairs
  static constexpr int kRotaryDim = 64;  // lane l computes frequency l
  static constexpr int kBlock = 4;
};

inline constexpr int kFrontThreads = 256;
inline constexpr int kFrontWarps = kFrontThreads / 32;

struct FrontPlan {
  bool fast = false;
  int first_task = 0;      // of a row's list: queries, which may be left out, come first
  int tasks_per_row = 0;   // (pairs of index) queries, keys, values, the raw index key
  int tasks_per_warp = 0;  // of one row, which share the row's angles
  int warps_per_row = 0;
  int64_t blocks = 0;
};

/// Empty when the fast kernel takes these arguments, else the reason why not.
constexpr std::string_view supports_fast_front(const ops::QsaShape& shape,
                                               const ops::QsaCache& cache) {
  constexpr size_t kVector = 16;
  const auto aligned = [](size_t a, size_t b) { return a % kVector == 0 && b % kVector == 0; };
  const auto stored = [](DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF8E4M3; };
  if (shape.head_dim != FastFrontShape::kHeadDim) return "head dim is not 256";
  if (shape.index_dim != FastFrontShape::kIndexDim) return "index dim is not 128";
  if (shape.rotary_dim != FastFrontShape::kRotaryDim) return "rotary dim is not 64";
  if (shape.block != FastFrontShape::kBlock) return "blocks are not of 4 tokens";
  if (shape.index_heads % 2 != 0) return "odd number of index heads";
  if (!stored(cache.keys.dtype) || !stored(cache.values.dtype))
    return "K or V is neither BF16 nor E4M3";
  if (cache.index_keys.dtype != DType::kBF16) return "index keys are not BF16";
  if (!aligned(cache.keys.page_stride, cache.keys.offset) ||
      !aligned(cache.values.page_stride, cache.values.offset) ||
      !aligned(cache.index_keys.page_stride, cache.index_keys.offset) ||
      !aligned(cache.raw_keys.entry_bytes, cache.raw_keys.offset))
    return "a cache part is not 16-byte aligned";
  return {};
}

/// Decode rows spread over as many warps as there are tasks (latency); prompt rows keep a few tasks
/// together, so that the angles are computed once for them. The bits of a head are the same.
constexpr int kDecodeFrontTasks = 1;
constexpr int kPrefillFrontTasks = 8;

/// `queries`: whether the rows ask anything, or fill the caches only.
constexpr FrontPlan plan_front(const ops::QsaShape& shape, const ops::QsaCache& cache,
                               ops::Role role, int num_rows, bool queries) {
  FrontPlan plan;
  plan.fast = supports_fast_front(shape, cache).empty();
  const int index_tasks = plan.fast ? shape.index_heads / 2 : shape.index_heads;
  const int query_tasks = shape.heads + index_tasks;
  plan.first_task = queries ? 0 : query_tasks;
  plan.tasks_per_row = (queries ? query_tasks : 0) + 2 * shape.kv_heads + 1;
  plan.tasks_per_warp =
      plan.fast && role == ops::Role::kPrefill ? kPrefillFrontTasks : kDecodeFrontTasks;
  plan.warps_per_row = (plan.tasks_per_row + plan.tasks_per_warp - 1) / plan.tasks_per_warp;
  plan.blocks = (int64_t{num_rows} * plan.warps_per_row + kFrontWarps - 1) / kFrontWarps;
  return plan;
}

}  // namespace tessera::cuda
