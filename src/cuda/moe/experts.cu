// SPDX-License-Identifier: Apache-2.0
// Experts: chooses the kernels by role and shape and cuts long launches into blocks of rows.
#include <algorithm>

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
  if (moe::why_not_streaming(shape).empty()) {
    run = moe::stream_experts;
    rows_per_block = moe::stream_rows(shape);
  }
  for (int first = 0; first < args.rows; first += rows_per_block) {
    const int rows = std::min(rows_per_block, args.rows - first);
    run(context, {args, shape, routed, shared, first, rows});
  }
}

}  // namespace tessera::cuda
