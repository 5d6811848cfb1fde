// SPDX-License-Identifier: Apache-2.0
// Which error counts as a pass, in one place.
#pragma once

#include <tessera/engine.h>

#include <string>

namespace tessera {

struct VerifyBounds {
  double relative_l2 = 0;  // of the logits, and of every float tensor unless only reported
  bool tensors_must_pass = true;
  bool sets_must_match = true;     // of experts; n-gram ids always must
  bool swaps_may_be_ties = false;  // selected blocks: false, all equal; see selection_ties.h
  double golden_margin = 1e-3;     // greedy mismatches below it are rounding ties (golden sets)
  double reference_margin = 5e-3;  // the same for reference.json
  double perplexity = 1e-3;        // relative
  double draft_flips = 5e-3;       // share of first drafts that rounding may turn over
};

/// Reference ops: FP32 with double accumulation against an FP32 reference. Fast ops: other
/// summation orders; BF16 caches add the rounding of K and V, which a later layer may turn into
/// another block or expert where two were nearly equal: one such row dominates an inner tensor.
VerifyBounds verify_bounds(const EngineOptions& options);

/// The bounds in words, with the numbers of `bounds`.
std::string describe_bounds(const EngineOptions& options, const VerifyBounds& bounds);

}  // namespace tessera
