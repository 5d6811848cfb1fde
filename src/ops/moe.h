// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: exact top-k router, routed experts, gated shared expert.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cost.h"
#include "ops/mixer.h"
#include "ops/rows.h"
#include "ops/weight.h"

namespace tessera::ops {

/// p = softmax over all experts; the best `top_k` (ties to the lower id), emitted best first.
struct RouterArgs {
  const void* x = nullptr;        // [rows, hidden] activations
  LinearWeight gate;              // [num_experts, hidden]
  LinearWeight shared_gate;       // [1, hidden]
  float* logits = nullptr;        // [rows, num_experts] gate x, written
  float* shared_logit = nullptr;  // [rows] shared_gate x, written
  int32_t* ids = nullptr;         // [rows, top_k], written
  float* weights = nullptr;       // [rows, top_k], written
  int rows = 0;
  int num_experts = 0;
  int top_k = 0;
  bool normalize = true;  // divide by the sum of the selected
  Role role = Role::kPrefill;
};

/// out = sum_i weights_i * expert_i(x) + sigmoid(shared_logit) * shared(x),
/// expert(x) = down(silu(gate x) * up x). Fixed order: experts in router order, then the shared
/// one. With `combine`, the result then goes into the branches, as CombineArgs says.
struct ExpertsArgs {
  const void* x = nullptr;              // [rows, hidden] activations
  const int32_t* ids = nullptr;         // [rows, top_k]
  const float* weights = nullptr;       // [rows, top_k]
  const float* shared_logit = nullptr;  // [rows], shared_expert_gate x
  std::span<const ExpertWeight> experts{};
  ExpertWeight shared;
  void* out = nullptr;                   // [rows, hidden] activations, written
  const CombineArgs* combine = nullptr;  // its `out` is this op's `out`
  int rows = 0;
  int top_k = 0;
  Role role = Role::kPrefill;
};

Cost cost(const RouterArgs& args);
Cost cost(const ExpertsArgs& args);

}  // namespace tessera::ops
