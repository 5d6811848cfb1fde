// SPDX-License-Identifier: Apache-2.0
// Gated Residual: reading the branches (mixer) and writing a block's output back (combine).
// Formula: N = GRMS1(R); d = silu(W_down N / S); u = sigmoid(W_up d);
//          m = mean over branches of u_g * N_g; inject = W_inj N / S;  R_g += 2 sigmoid(inject_g)
//          o.
#pragma once

#include "ops/cost.h"
#include "ops/rows.h"
#include "ops/weight.h"

namespace tessera::ops {

struct MixerWeights {
  const float* norm = nullptr;  // [branches * hidden], applied as 1 + w
  LinearWeight down;            // [rank, branches * hidden]
  LinearWeight up;              // [branches * hidden, rank]
  LinearWeight inject;          // [branches, branches * hidden]; empty in the final mixer
};

struct MixerArgs {
  const void* wide = nullptr;    // [rows, branches * hidden] activations
  const void* normed = nullptr;  // [rows, branches * hidden] N, when combine has written it
  MixerWeights weights;
  void* mixed = nullptr;    // [rows, hidden] activations, written
  float* inject = nullptr;  // [rows, branches] logits, written; nullptr in the final mixer
  int rows = 0;
  int branches = 0;
  int hidden = 0;
  float eps = 0;
  Role role = Role::kPrefill;
};

/// The updated branches are rounded to the activation type before the next norm reads them.
struct CombineArgs {
  void* wide = nullptr;              // [rows, branches * hidden] activations, updated in place
  const void* out = nullptr;         // [rows, hidden] activations, the block's output
  const float* inject = nullptr;     // [rows, branches] logits
  const float* next_norm = nullptr;  // [branches * hidden] of the next mixer; nullptr: no norm
  void* normed = nullptr;            // [rows, branches * hidden] activations, GRMS1(R), written
  float eps = 0;
  int rows = 0;
  int branches = 0;
  int hidden = 0;
};

Cost cost(const MixerArgs& args);
Cost cost(const CombineArgs& args);

}  // namespace tessera::ops
