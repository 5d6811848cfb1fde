// SPDX-License-Identifier: Apache-2.0
// y = x W^T for several weights that read the same rows, as one launch.
#pragma once

#include <span>

#include "ops/cost.h"
#include "ops/rows.h"
#include "ops/weight.h"

namespace tessera::ops {

struct LinearPart {
  LinearWeight weight;
  float* y = nullptr;  // [rows, weight.out_features], dense
};

struct LinearArgs {
  const float* x = nullptr;  // [rows, in_features], dense
  std::span<const LinearPart> parts{};
  int rows = 0;
  Role role = Role::kPrefill;
};

Cost cost(const LinearArgs& args);

}  // namespace tessera::ops
