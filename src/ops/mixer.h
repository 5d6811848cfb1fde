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
  const float* wide = nullptr;  // [rows, branches * hidden]
  MixerWeights weights;
  float* mixed = nullptr;   // [rows, hidden], written
  float* inject = nullptr;  // [rows, branches] logits, written; nullptr in the final mixer
  int rows = 0;
  int branches = 0;
  int hidden = 0;
  float eps = 0;
  Role role = Role::kPrefill;
};

struct CombineArgs {
  float* wide = nullptr;          // [rows, branches * hidden], updated in place
  const float* out = nullptr;     // [rows, hidden], the block's output
  const float* inject = nullptr;  // [rows, branches] logits
  int rows = 0;
  int branches = 0;
  int hidden = 0;
};

Cost cost(const MixerArgs& args);
Cost cost(const CombineArgs& args);

}  // namespace tessera::ops
