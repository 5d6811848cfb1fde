// SPDX-License-Identifier: Apache-2.0
// Experts: chooses the kernels by role and shape and cuts long launches into blocks of rows.
#include <algorithm>
#include <string>

#include "cuda/cuda_kernels.h"
#include "cuda/moe/moe_parts.h"

namespace tessera::cuda {
namespace {

moe::MoeShape shape_of(const ops::ExpertsArgs& args) {
  moe::MoeShape shape{.hidden = args.shared.down.out_features,
                      .width = args.shared.gate.out_features,
                      .shared_width = args.shared.gate.out_features,
                      .num_experts = static_cast<int>(args.experts.size()),
                      .top_k = args.top_k,
                      .routed = args.shared.gate.dtype,
                      .shared = args.shared.gate.dtype};
  if (!args.experts.empty()) {
    shape.width = args.experts[0].gate.out_features;
    shape.routed = args.experts[0].gate.dtype;
  }
  return shape;
}

}  // namespace

void launch_experts(Context& context, const ops::ExpertsArgs& args) {
  if (args.rows == 0) return;
  const moe::MoeShape shape = shape_of(args);
  const moe::ExpertStack routed = moe::stack_experts(args.experts);
  const moe::ExpertStack shared = moe::stack_experts({&args.shared, 1});
  auto* run = moe::generic_experts;
  int rows_per_block = moe::generic_rows(shape);
  if (args.role == ops::Role::kPrefill && moe::why_not_grouped(shape, context.gpu()).empty() &&
      moe::why_not_grouped(routed, shared).empty()) {
    run = moe::grouped_experts;
    rows_per_block = moe::kGroupedRows;
  } else if (moe::why_not_streaming(shape, context.gpu()).empty() &&
             moe::why_not_streaming(routed, shared).empty()) {
    run = moe::stream_experts;
    rows_per_block = moe::stream_rows(shape);
  }
  for (int first = 0; first < args.rows; first += rows_per_block) {
    const int rows = std::min(rows_per_block, args.rows - first);
    run(context, {args, shape, routed, shared, first, rows});
  }
}

ops::KernelNote note_experts(const GpuSpec& gpu) {
  constexpr moe::MoeShape kReleased{
      .hidden = 2560, .width = 640, .shared_width = 640, .num_experts = 512, .top_k = 10};
  const std::string_view reason = moe::why_not_grouped(kReleased, gpu);
  if (reason.empty())
    return {.op = "experts",
            .kernel = "streamed weights; prompts: grouped products, sm_90a",
            .reason = "released and small sizes; others one dot product per warp"};
  return {.op = "experts",
          .kernel = "one dot product per warp",
          .reason = "streamed weights and grouped products: " + std::string(reason)};
}

}  // namespace tessera::cuda
