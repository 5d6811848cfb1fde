// SPDX-License-Identifier: Apache-2.0
// Launches of the generic expert kernels.
#include <stdexcept>

#include "cuda/moe/generic_kernel.cuh"
#include "cuda/moe/moe_parts.h"

namespace tessera::cuda::moe {
namespace {

template <class Type>
struct GenericTile {
  using Weight = Type;
  static constexpr int kWarps = 8;
};

using Kernel = void (*)(device::GenericArgs);

void run(Context& context, Kernel kernel, const device::GenericArgs& args, int columns) {
  constexpr int kWarps = GenericTile<float>::kWarps;
  const size_t pairs =
      static_cast<size_t>(args.rows) * static_cast<size_t>(args.ids == nullptr ? 1 : args.top_k);
  const size_t items = pairs * static_cast<size_t>(columns);
  const auto blocks = static_cast<unsigned>((items + kWarps - 1) / kWarps);
  launch(context, {.grid = {blocks}, .block = {kWarps * device::kWarp}}, kernel, args);
}

template <class Type>
void run_stack(Context& context, const device::GenericArgs& args) {
  run(context, device::generic_up<GenericTile<Type>>, args, args.width);
  run(context, device::generic_down<GenericTile<Type>>, args, args.hidden);
}

void run_type(Context& context, const device::GenericArgs& args) {
  switch (args.experts.dtype) {
    case DType::kF32: return run_stack<float>(context, args);
    case DType::kBF16: return run_stack<device::Bf16>(context, args);
    case DType::kF8E4M3: return run_stack<device::F8>(context, args);
    default: throw std::logic_error("expert weights must be F32, BF16 or FP8");
  }
}

}  // namespace

void generic_experts(Context& context, const RowBlock& block) {
  const StreamScratch pieces = stream_scratch(block.shape, block.rows);
  auto* scratch = static_cast<std::byte*>(context.scratch(pieces.bytes()));
  auto* results = reinterpret_cast<float*>(scratch + pieces.inner);
  device::GenericArgs args{.x = static_cast<const device::Bf16*>(block.x()),
                           .ids = block.ids(),
                           .experts = block.routed,
                           .inner = reinterpret_cast<device::Bf16*>(scratch),
                           .results = results,
                           .rows = block.rows,
                           .top_k = block.shape.top_k,
                           .hidden = block.shape.hidden,
                           .width = block.shape.width,
                           .inner_stride = inner_stride(block.shape)};
  if (block.shape.top_k > 0) run_type(context, args);
  args.ids = nullptr;
  args.experts = block.shared;
  args.width = block.shape.shared_width;
  run_type(context, args);
  finalise(context, block, results, ResultType::kFloat, nullptr);
}

}  // namespace tessera::cuda::moe
