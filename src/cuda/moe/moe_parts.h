// SPDX-License-Identifier: Apache-2.0
// The pieces of launch_experts: one translation unit per kind of kernel.
#pragma once

#include <span>
#include <string_view>

#include "cuda/context.h"
#include "cuda/moe/moe_plan.h"
#include "cuda/moe/moe_weights.h"
#include "ops/moe.h"

namespace tessera::cuda::moe {

/// The rows [first, first + rows) of a launch, as every path sees them.
struct RowBlock {
  const ops::ExpertsArgs& args;
  const MoeShape& shape;
  const ExpertStack& routed;
  const ExpertStack& shared;
  int first = 0;
  int rows = 0;

  const void* x() const {
    return static_cast<const std::byte*>(args.x) + offset(shape.hidden) * dtype_bytes(kActivation);
  }
  void* out() const {
    return static_cast<std::byte*>(args.out) + offset(shape.hidden) * dtype_bytes(kActivation);
  }
  const int32_t* ids() const { return args.ids + offset(shape.top_k); }
  const float* weights() const { return args.weights + offset(shape.top_k); }
  const float* shared_logit() const { return args.shared_logit + offset(1); }

 private:
  static constexpr DType kActivation = DType::kBF16;
  size_t offset(int width) const { return static_cast<size_t>(first) * static_cast<size_t>(width); }
};

enum class ResultType { kFloat, kBf16 };

/// Adds up `results` [entries, hidden] and applies args.combine. `places`: [rows, slots] entry of
/// each result, nullptr when they lie in order.
void finalise(Context& context, const RowBlock& block, const void* results, ResultType type,
              const int32_t* places);

/// Empty when the copy engine can address the experts, else the reason.
std::string_view why_not_streaming(const ExpertStack& routed, const ExpertStack& shared);
void stream_experts(Context& context, const RowBlock& block);
void generic_experts(Context& context, const RowBlock& block);

/// Empty when the copy engine can address the experts as grouped products do, else the reason.
std::string_view why_not_grouped(const ExpertStack& routed, const ExpertStack& shared);
void grouped_experts(Context& context, const RowBlock& block);

}  // namespace tessera::cuda::moe
