// SPDX-License-Identifier: Apache-2.0
// Launches of the streaming expert kernels; the table of instances is the list of what is
// supported.
#include <array>
#include <utility>

#include "cuda/moe/moe_parts.h"
#include "cuda/moe/stream_kernel.cuh"

namespace tessera::cuda::moe {
namespace {

template <class RoutedType, class SharedType, size_t kIndex, bool kIsUp>
struct StreamConfig {
  using Routed = RoutedType;
  using Shared = SharedType;
  static constexpr StreamTile kTile = kIsUp ? kUpTiles[kIndex] : kDownTiles[kIndex];
  static constexpr int kDepth = kTile.depth;
  static constexpr int kSlices = kTile.slices;
  static constexpr bool kUp = kIsUp;
};

using Kernel = void (*)(device::StreamArgs);
struct StreamKernel {
  Kernel kernel;
  size_t shared_bytes;
};

template <class Config>
StreamKernel instance() {
  return {device::experts_stream<Config>, sizeof(device::StreamShared<Config>)};
}
template <bool kUp, size_t... kIndices>
auto bf16_table(std::index_sequence<kIndices...>) {
  using Bf16 = device::Bf16;
  return std::array{instance<StreamConfig<Bf16, Bf16, kIndices, kUp>>()...};
}

template <bool kUp>
StreamKernel pick(DType routed, DType shared, int tile) {
  constexpr size_t kCount = kUp ? kUpTiles.size() : kDownTiles.size();
  static const auto kBf16 = bf16_table<kUp>(std::make_index_sequence<kCount>());
  if (routed == DType::kBF16) return kBf16[static_cast<size_t>(tile)];
  if (shared == DType::kBF16)
    return instance<StreamConfig<device::F8, device::Bf16, kF8Tile, kUp>>();
  return instance<StreamConfig<device::F8, device::F8, kF8Tile, kUp>>();
}

void run(Context& context, const StreamKernel& kernel, const device::StreamArgs& args,
         DType routed) {
  const auto blocks = static_cast<unsigned>(stream_blocks(routed, context.gpu()));
  launch(context,
         {.grid = {blocks}, .block = {kStreamThreads}, .shared_bytes = kernel.shared_bytes},
         kernel.kernel, args);
}

}  // namespace

void stream_experts(Context& context, const RowBlock& block) {
  const MoeShape& shape = block.shape;
  const StreamScratch pieces = stream_scratch(shape, block.rows);
  auto* scratch = static_cast<std::byte*>(context.scratch(pieces.bytes()));
  device::StreamArgs args{.x = static_cast<const device::Bf16*>(block.x()),
                          .ids = block.ids(),
                          .routed = block.routed,
                          .shared = block.shared,
                          .out = scratch,
                          .rows = block.rows,
                          .top_k = shape.top_k,
                          .outs = shape.width};
  run(context, pick<true>(shape.routed, shape.shared, find_tile(kUpTiles, shape.hidden)), args,
      shape.routed);
  // NOTE: nothing may be launched in between: the down kernel reads ids before its wait, relying on
  // the up kernel's.
  void* results = scratch + pieces.inner;
  args.x = reinterpret_cast<const device::Bf16*>(scratch);
  args.out = results;
  args.outs = shape.hidden;
  run(context, pick<false>(shape.routed, shape.shared, find_tile(kDownTiles, shape.width)), args,
      shape.routed);
  finalise(context, block, results, ResultType::kFloat, nullptr);
}

}  // namespace tessera::cuda::moe
