// SPDX-License-Identifier: Apache-2.0
// y = x W^T for several weights that read the same rows, as one launch.
#pragma once

#include <span>

#include "ops/cost.h"
#include "ops/rows.h"
#include "ops/weight.h"

namespace tessera::ops {

/// Element type of a product: logits, gates and other inputs of exponentials stay FP32.
enum class Output : uint8_t { kActivation, kFloat };

struct LinearPart {
  LinearWeight weight;
  void* y = nullptr;  // [rows, weight.out_features], dense, of the type that `output` says
  Output output = Output::kActivation;
};

struct LinearArgs {
  const void* x = nullptr;  // [rows, in_features] activations, dense
  std::span<const LinearPart> parts{};
  int rows = 0;
  Role role = Role::kPrefill;
};

Cost cost(const LinearArgs& args);

}  // namespace tessera::ops
