// SPDX-License-Identifier: Apache-2.0
// End of a launch: what later launches need of it is stored, and the rows whose logits are wanted
// are gathered.
#pragma once

#include <cstdint>

#include "ops/cost.h"
#include "ops/rows.h"

namespace tessera::ops {

struct FinishArgs {
  const int32_t* ids = nullptr;  // [rows]
  const void* wide = nullptr;    // [rows, width] activations
  int width = 0;                 // branches * hidden
  RowBatch batch;
  bool keeps_wide = true;  // else `wide_offset` is not written: a round knows the last row later
  RingRef token_ring;      // entries int64: the ids of the last rows are stored
  size_t wide_offset = 0;  // in the slot: [width] activations of the last row, stored
  const int32_t* logit_rows = nullptr;  // [num_logit_rows] row indices
  int num_logit_rows = 0;
  void* selected = nullptr;  // [num_logit_rows, width] activations, written
};

Cost cost(const FinishArgs& args);

}  // namespace tessera::ops
