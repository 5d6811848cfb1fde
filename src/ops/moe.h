// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: exact top-k router, routed experts, gated shared expert.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cost.h"
#include "ops/rows.h"
#include "ops/weight.h"

namespace tessera::ops {

/// p = softmax over all experts; the best `top_k` (ties to the lower id), emitted best first.
struct RouterArgs {
  const float* logits = nullptr;  // [rows, num_experts], gate x
  int32_t* ids = nullptr;         // [rows, top_k], written
  float* weights = nullptr;       // [rows, top_k], written
  int rows = 0;
  int num_experts = 0;
  int top_k = 0;
  bool normalize = true;  // divide by the sum of the selected
};

/// out = sum_i weights_i * expert_i(x) + sigmoid(shared_logit) * shared(x),
/// expert(x) = down(silu(gate x) * up x). Fixed order: experts in router order, then the shared
/// one.
struct ExpertsArgs {
  const float* x = nullptr;             // [rows, hidden]
  const int32_t* ids = nullptr;         // [rows, top_k]
  const float* weights = nullptr;       // [rows, top_k]
  const float* shared_logit = nullptr;  // [rows], shared_expert_gate x
  std::span<const ExpertWeight> experts{};
  ExpertWeight shared;
  float* out = nullptr;  // [rows, hidden], written
  int rows = 0;
  int top_k = 0;
  Role role = Role::kPrefill;
};

Cost cost(const RouterArgs& args);
Cost cost(const ExpertsArgs& args);

}  // namespace tessera::ops
