// SPDX-License-Identifier: Apache-2.0
// Which error counts as a pass, in one place.
#pragma once

#include <tessera/engine.h>

#include <string>

namespace tessera {

struct VerifyBounds {
  double relative_l2 = 0;  // of the logits, and of every float tensor unless only reported
  bool tensors_must_pass = true;
  bool sets_must_match = true;     // selected blocks and experts; n-gram ids always must
  double golden_margin = 1e-3;     // greedy mismatches below it are rounding ties (golden sets)
  double reference_margin = 5e-3;  // the same for reference.json
  double perplexity = 1e-3;        // relative
  std::string text{};
};

/// Reference ops: FP32 with double accumulation against an FP32 reference. Fast ops: other
/// summation orders; BF16 caches add the rounding of K and V, which a later layer may turn into
/// another block or expert where two were nearly equal: one such row dominates an inner tensor.
inline VerifyBounds verify_bounds(const EngineOptions& options) {
  VerifyBounds bounds;
  if (options.cache_type == CacheType::kBF16) {
    bounds.relative_l2 = 1e-2;
    bounds.sets_must_match = false;
    bounds.tensors_must_pass = false;
    bounds.text = "BF16 caches: relative L2 of the logits <= 1e-2, inner tensors and sets reported";
  } else if (options.ops == OpsKind::kReference) {
    bounds.relative_l2 = 1e-4;
    bounds.text = "reference ops, FP32 caches: relative L2 <= 1e-4, all sets equal";
  } else {
    bounds.relative_l2 = 1e-3;
    bounds.sets_must_match = false;
    bounds.text = "fast ops, FP32 caches: relative L2 <= 1e-3, sets reported";
  }
  bounds.text += "; n-gram ids equal; greedy ids equal where the reference's margin is above " +
                 std::string("1e-3 (golden) or 5e-3 (reference.json); perplexity within 0.1 %");
  return bounds;
}

}  // namespace tessera
