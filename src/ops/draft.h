// SPDX-License-Identifier: Apache-2.0
// What the draft layer (MTP) reads: row i joins the branches R_i with the token that follows it.
// Formula: e = W_e RMS1(embed(t_{i+1})); n = RMS1(R_i), one mean over all branches;
//          X_g = W_h n_g + e. This op writes the two norms; the products are `linear`, the sum is
//          `combine` with the weight 2 sigmoid(0) = 1.
#pragma once

#include <cstdint>

#include "ops/cost.h"
#include "ops/weight.h"

namespace tessera::ops {

struct DraftInputArgs {
  const int32_t* ids = nullptr;           // [rows] t_{i+1}
  LinearWeight table;                     // [vocab, hidden] of the embedding
  const void* wide = nullptr;             // [any, branches * hidden] activations, R
  const int32_t* wide_rows = nullptr;     // [rows] the row of `wide` that each row reads
  const float* norm_embedding = nullptr;  // [hidden], 1 + w
  const float* norm_hidden = nullptr;     // [branches * hidden], 1 + w
  float eps = 0;
  int rows = 0;
  int branches = 0;
  void* embedded = nullptr;  // [rows, hidden] activations, written
  void* normed = nullptr;    // [rows, branches * hidden] activations, written
  float* inject = nullptr;   // [rows, branches] zeros, written: the logits of the sum
};

Cost cost(const DraftInputArgs& args);

}  // namespace tessera::ops
