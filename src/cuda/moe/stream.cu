// SPDX-License-Identifier: Apache-2.0
// Launch of the streaming expert kernel; the table of instances is the list of what is supported.
#include <array>
#include <utility>

#include "cuda/moe/moe_parts.h"
#include "cuda/moe/stream_kernel.cuh"

namespace tessera::cuda::moe {
namespace {

constexpr char kArrivals = 0;  // its address names the arrival counter

template <size_t kIndex>
struct StreamConfig {
  static constexpr int kStages = kStreamStages[kIndex];
};

struct StreamKernel {
  void (*kernel)(device::StreamArgs);
  size_t shared_bytes;
};
template <size_t... kIndices>
constexpr auto stream_table(std::index_sequence<kIndices...>) {
  static_assert(((sizeof(device::StreamShared<StreamConfig<kIndices>>) <=
                  stream_shared_bytes(kStreamStages[kIndices])) &&
                 ...));
  return std::array{StreamKernel{device::experts_stream<StreamConfig<kIndices>>,
                                 sizeof(device::StreamShared<StreamConfig<kIndices>>)}...};
}

device::StreamSegment up_segment(const MoeShape& shape, const ExpertStack& stack) {
  const int row_bytes = shape.hidden * static_cast<int>(dtype_bytes(stack.dtype));
  return {.low = stack.gate.data,
          .high = stack.up.data,
          .low_scale = stack.gate.scale,
          .high_scale = stack.up.scale,
          .low_stride = stack.gate.stride,
          .high_stride = stack.up.stride,
          .low_scale_stride = stack.gate.scale_stride,
          .high_scale_stride = stack.up.scale_stride,
          .scale_cols = stack.gate.scale_cols,
          .row_bytes = row_bytes,
          .depth = shape.hidden,
          .step = StreamGeometry::kHalfRows,
          .tiles = shape.width / StreamGeometry::kHalfRows,
          .split = split_stream(row_bytes)};
}

device::StreamSegment down_segment(const MoeShape& shape, const ExpertStack& stack) {
  const int row_bytes = shape.width * static_cast<int>(dtype_bytes(stack.dtype));
  return {.low = stack.down.data,
          .high = stack.down.data + ptrdiff_t{StreamGeometry::kHalfRows} * row_bytes,
          .low_scale = stack.down.scale,
          .high_scale = stack.down.scale,
          .low_stride = stack.down.stride,
          .high_stride = stack.down.stride,
          .low_scale_stride = stack.down.scale_stride,
          .high_scale_stride = stack.down.scale_stride,
          .scale_cols = stack.down.scale_cols,
          .row_bytes = row_bytes,
          .depth = shape.width,
          .step = StreamGeometry::kTileRows,
          .tiles = shape.hidden / StreamGeometry::kTileRows,
          .split = split_stream(row_bytes)};
}

}  // namespace

void stream_experts(Context& context, const RowBlock& block) {
  static const auto kKernels = stream_table(std::make_index_sequence<kStreamStages.size()>());
  const MoeShape& shape = block.shape;
  const StreamScratch pieces = stream_scratch(shape, block.rows);
  auto* scratch = static_cast<std::byte*>(context.scratch(pieces.bytes()));
  // Without routed experts their segments are those of the shared one, and never used.
  const ExpertStack& routed = shape.num_experts > 0 ? block.routed : block.shared;
  const device::StreamArgs args{
      .segments = {up_segment(shape, block.shared), up_segment(shape, routed),
                   down_segment(shape, block.shared), down_segment(shape, routed)},
      .x = static_cast<const device::Bf16*>(block.x()),
      .ids = block.ids(),
      .inner = reinterpret_cast<device::Bf16*>(scratch),
      .results = reinterpret_cast<device::Bf16*>(scratch + pieces.inner),
      .arrivals = static_cast<uint64_t*>(context.persistent(&kArrivals, sizeof(uint64_t))),
      .rows = block.rows,
      .top_k = shape.top_k};
  const StreamKernel& kernel = kKernels[static_cast<size_t>(find_stream_stages(context.gpu()))];
  launch(context,
         {.grid = {static_cast<unsigned>(context.gpu().num_sms)},
          .block = {StreamGeometry::kThreads},
          .shared_bytes = kernel.shared_bytes},
         kernel.kernel, args);
  finalise(context, block, args.results, ResultType::kBf16, nullptr);
}

}  // namespace tessera::cuda::moe
