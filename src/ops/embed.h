// SPDX-License-Identifier: Apache-2.0
// Token embedding, replicated into every residual branch. spec: trunk, R = x repeated S times.
#pragma once

#include <cstdint>

#include "ops/cost.h"
#include "ops/weight.h"

namespace tessera::ops {

struct EmbedArgs {
  const int32_t* ids = nullptr;  // [rows]
  LinearWeight table;            // [vocab, hidden]
  void* wide = nullptr;          // [rows, branches * hidden] activations, written
  int rows = 0;
  int branches = 0;
};

Cost cost(const EmbedArgs& args);

}  // namespace tessera::ops
