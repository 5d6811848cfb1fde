// SPDX-License-Identifier: Apache-2.0
// How the sampling of a launch is spread over blocks: plain numbers, tested without a device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/gpu_spec.h"
#include "ops/sample.h"

namespace tessera::cuda {

inline constexpr int kSampleThreads = 512;
inline constexpr int kSampleMaxBlocks = 8;  // of a row: one cluster
/// A warp reads 128 logits at once, so slices and the parts of warps are multiples of them.
inline constexpr int kSampleGrain = 128;
/// Sums of weights are integers: 44 bits each, so 64 bits hold those of a whole vocabulary.
inline constexpr int kSampleWeightBits = 44;
inline constexpr int kSampleMaxVocab = 1 << 19;

struct SamplePlan {
  int blocks = 1;          // of a row
  int slice = 0;           // logits of a block
  bool best_only = true;   // one pass
  bool in_shared = false;  // the slice lies in shared memory: passes after the first never leave it
  bool copies = false;     // edited logits go to scratch memory instead
  size_t shared_bytes = 0;
};

/// What a row needs beyond one pass for its best token.
inline bool needs_passes(const ops::SampleRow& row) {
  return row.temperature != 0.0F || row.top_logprobs >= 0 || row.num_edits > 0;
}

/// Of rows without edits. `base_bytes`: shared memory of a block without its slice. The tokens do
/// not depend on the plan.
inline SamplePlan plan_draw(int vocab, bool best_only, const GpuSpec& gpu, size_t base_bytes) {
  constexpr int kOneBlockVocab = 16384;
  SamplePlan plan;
  plan.blocks = gpu.is_hopper() && vocab > kOneBlockVocab ? kSampleMaxBlocks : 1;
  const int share = (vocab + plan.blocks - 1) / plan.blocks;
  plan.slice = (share + kSampleGrain - 1) / kSampleGrain * kSampleGrain;
  plan.shared_bytes = base_bytes;
  plan.best_only = best_only;
  if (plan.best_only) return plan;
  const size_t with_slice = base_bytes + static_cast<size_t>(plan.slice) * sizeof(float);
  plan.in_shared = with_slice <= gpu.shared_bytes_per_block;
  if (plan.in_shared) plan.shared_bytes = with_slice;
  return plan;
}

inline SamplePlan plan_sample(const ops::SampleArgs& args, const GpuSpec& gpu, size_t base_bytes) {
  const bool best_only = std::none_of(args.rows.begin(), args.rows.end(), needs_passes);
  SamplePlan plan = plan_draw(args.vocab, best_only, gpu, base_bytes);
  plan.copies = !plan.best_only && !plan.in_shared &&
                std::any_of(args.rows.begin(), args.rows.end(),
                            [](const ops::SampleRow& row) { return row.num_edits > 0; });
  return plan;
}

}  // namespace tessera::cuda
