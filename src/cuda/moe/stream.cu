// SPDX-License-Identifier: Apache-2.0
// Launch of the streaming expert kernel.
#include <algorithm>

#include "cuda/moe/moe_parts.h"
#include "cuda/moe/stream_kernel.cuh"
#include "cuda/moe/tensor_map.h"

namespace tessera::cuda::moe {
namespace {

constexpr char kArrivals = 0;  // its address names the arrival counter

static_assert(sizeof(device::StreamShared) <= kH200.shared_bytes_per_block);

device::StreamSegment up_segment(const MoeShape& shape, const ExpertStack& stack) {
  const int row_bytes = shape.hidden * static_cast<int>(dtype_bytes(stack.dtype));
  return {.low_scale = stack.gate.scale,
          .high_scale = stack.up.scale,
          .low_scale_stride = stack.gate.scale_stride,
          .high_scale_stride = stack.up.scale_stride,
          .scale_cols = stack.gate.scale_cols,
          .row_bytes = row_bytes,
          .depth = shape.hidden,
          .step = StreamGeometry::kHalfRows,
          .high_row = 0,
          .tiles = shape.width / StreamGeometry::kHalfRows,
          .split = split_stream(row_bytes)};
}

device::StreamSegment down_segment(const MoeShape& shape, const ExpertStack& stack) {
  const int row_bytes = shape.width * static_cast<int>(dtype_bytes(stack.dtype));
  return {.low_scale = stack.down.scale,
          .high_scale = stack.down.scale,
          .low_scale_stride = stack.down.scale_stride,
          .high_scale_stride = stack.down.scale_stride,
          .scale_cols = stack.down.scale_cols,
          .row_bytes = row_bytes,
          .depth = shape.width,
          .step = StreamGeometry::kTileRows,
          .high_row = StreamGeometry::kHalfRows,
          .tiles = shape.hidden / StreamGeometry::kTileRows,
          .split = split_stream(row_bytes)};
}

/// The matrices of a segment: `rows` by segment.depth each.
device::StreamMaps maps_of(const device::StreamSegment& segment, const MatrixStack& low,
                           const MatrixStack& high, DType dtype, int rows, int num_experts) {
  const auto map = [&](const MatrixStack& stack) {
    return map_slices(stack, dtype, rows, segment.depth, num_experts, segment.split.per_team);
  };
  return {.low = map(low), .high = map(high)};
}

}  // namespace

std::string_view why_not_streaming(const ExpertStack& routed, const ExpertStack& shared) {
  const std::string_view reason = why_not_mapped(routed);
  return reason.empty() ? why_not_mapped(shared) : reason;
}

void stream_experts(Context& context, const RowBlock& block) {
  const MoeShape& shape = block.shape;
  const StreamScratch pieces = stream_scratch(shape, block.rows);
  auto* scratch = static_cast<std::byte*>(context.scratch(pieces.bytes()));
  // Without routed experts their segments are those of the shared one, and never used.
  const ExpertStack& routed = shape.num_experts > 0 ? block.routed : block.shared;
  const device::StreamArgs args{
      .segments = {up_segment(shape, block.shared), up_segment(shape, routed),
                   down_segment(shape, block.shared), down_segment(shape, routed)},
      .shared_down = block.shared.down.data,
      .x = static_cast<const device::Bf16*>(block.x()),
      .ids = block.ids(),
      .inner = reinterpret_cast<device::Bf16*>(scratch),
      .results = reinterpret_cast<device::Bf16*>(scratch + pieces.inner),
      .arrivals = static_cast<uint64_t*>(context.persistent(&kArrivals, sizeof(uint64_t))),
      .rows = block.rows,
      .top_k = shape.top_k};
  const auto up_maps = [&](int phase, const ExpertStack& stack, int experts) {
    return maps_of(args.segments[phase], stack.gate, stack.up, stack.dtype, shape.width, experts);
  };
  const auto down_maps = [&](int phase, const ExpertStack& stack, int experts) {
    return maps_of(args.segments[phase], stack.down, stack.down, stack.dtype, shape.hidden,
                   experts);
  };
  const int experts = std::max(1, shape.num_experts);
  const device::StreamMapTable maps{.segments = {up_maps(device::kSharedUp, block.shared, 1),
                                                 up_maps(device::kRoutedUp, routed, experts),
                                                 down_maps(device::kSharedDown, block.shared, 1),
                                                 down_maps(device::kRoutedDown, routed, experts)}};
  launch(context,
         {.grid = {static_cast<unsigned>(context.gpu().num_sms)},
          .block = {StreamGeometry::kThreads},
          .shared_bytes = sizeof(device::StreamShared)},
         device::experts_stream, args, maps);
  finalise(context, block, args.results, ResultType::kBf16, nullptr);
}

}  // namespace tessera::cuda::moe
