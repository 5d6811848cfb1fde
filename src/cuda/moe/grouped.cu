// SPDX-License-Identifier: Apache-2.0
// Launches for prompts: sort by expert, gate and up, down, sum. The table of instances is the list
// of what is supported.
#include <algorithm>

#include "cuda/moe/grouped_kernel.cuh"
#include "cuda/moe/moe_parts.h"
#include "cuda/moe/sort_kernel.cuh"
#include "cuda/moe/tensor_map.h"

namespace tessera::cuda::moe {
namespace {

struct SortTile {
  static constexpr int kThreads = kSortThreads;
};

template <class WeightType, int kBlockCount, bool kIsUp>
struct GroupedConfig {
  using Weight = WeightType;
  static constexpr bool kF8 = sizeof(Weight) == 1;
  static constexpr int kBlocks = kBlockCount;
  static constexpr bool kUp = kIsUp;
  static constexpr int kTokens = grouped_tokens(kF8 ? DType::kF8E4M3 : DType::kBF16);
  static constexpr int kStages = kF8 ? 4 : 3;
  static constexpr int kThreads = 3 * device::kWarpgroup;
  // One producer and two consumer warpgroups share what 168 registers per thread give.
  static constexpr int kProducerRegisters = kF8 ? 104 : 56;
  static constexpr int kConsumerRegisters = kF8 ? 200 : 224;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 3 * 168);
};

using Kernel = void (*)(device::GroupedArgs, CUtensorMap, CUtensorMap);
struct GroupedKernel {
  Kernel kernel;
  size_t shared_bytes;
};

template <class Config>
GroupedKernel instance() {
  static_assert(sizeof(device::GroupedShared<Config>) <= kH200.shared_bytes_per_block);
  return {device::experts_grouped<Config>, sizeof(device::GroupedShared<Config>)};
}

template <bool kUp>
GroupedKernel pick(DType weight, int blocks) {
  if (weight == DType::kF8E4M3) return instance<GroupedConfig<device::F8, 2, kUp>>();
  if (blocks == 2) return instance<GroupedConfig<device::Bf16, 2, kUp>>();
  return instance<GroupedConfig<device::Bf16, 1, kUp>>();
}

/// Pieces of the scratch memory.
struct Pieces {
  device::Bf16* inner;
  device::Bf16* results;
  device::SortArgs sort;
};

Pieces place_pieces(Context& context, const RowBlock& block) {
  const MoeShape& shape = block.shape;
  const GroupedScratch sizes = grouped_scratch(shape, block.rows);
  auto* at = static_cast<std::byte*>(context.scratch(sizes.bytes()));
  const auto take = [&at](size_t bytes) {
    std::byte* piece = at;
    at += bytes;
    return piece;
  };
  const auto take_ints = [&take](size_t bytes) { return reinterpret_cast<int32_t*>(take(bytes)); };
  Pieces pieces{.inner = reinterpret_cast<device::Bf16*>(take(sizes.inner)),
                .results = reinterpret_cast<device::Bf16*>(take(sizes.results)),
                .sort = {}};
  pieces.sort.ids = block.ids();
  pieces.sort.histogram = take_ints(sizes.histogram);
  pieces.sort.places = take_ints(sizes.places);
  pieces.sort.source_rows = take_ints(sizes.source_rows);
  pieces.sort.begins = take_ints(sizes.tables / 3);
  pieces.sort.counts = take_ints(sizes.tables / 3);
  pieces.sort.tile_begins = take_ints(sizes.tables / 3);
  pieces.sort.rows = block.rows;
  pieces.sort.top_k = shape.top_k;
  pieces.sort.num_experts = shape.num_experts;
  return pieces;
}

/// One product over the groups [first, last).
template <bool kUp>
void multiply(Context& context, const RowBlock& block, device::GroupedArgs args, DType weight,
              int first, int last) {
  const MoeShape& shape = block.shape;
  const int weight_rows = kUp ? 2 * shape.width : shape.hidden;
  const int blocks = grouped_blocks(weight_rows), tile_rows = grouped_tile_rows(blocks);
  args.groups.first = first;
  args.groups.last = last;
  args.groups.weight_tiles = weight_rows / tile_rows;
  args.experts = first == 0 ? block.shared : block.routed;
  args.depth = kUp ? shape.hidden : shape.width;
  args.out_width = kUp ? shape.width : shape.hidden;
  CUtensorMap routed{}, shared{};
  if (weight == DType::kBF16) {
    const auto map = kUp ? map_gate_up : map_down;
    shared = map(block.shared, shape.width, shape.hidden, 1, tile_rows);
    // Every kernel fetches both maps: an unused one must be valid, too.
    routed = last > 1 ? map(block.routed, shape.width, shape.hidden, shape.num_experts, tile_rows)
                      : shared;
    if (first > 0) shared = routed;
  }
  const GroupedKernel kernel = pick<kUp>(weight, blocks);
  launch(context,
         {.grid = {static_cast<unsigned>(context.gpu().num_sms)},
          .block = {3 * device::kWarpgroup},
          .shared_bytes = kernel.shared_bytes},
         kernel.kernel, args, routed, shared);
}

/// The shared and the routed experts, in one launch when one kernel fits both.
template <bool kUp>
void multiply_all(Context& context, const RowBlock& block, const device::GroupedArgs& args) {
  const MoeShape& shape = block.shape;
  const int groups = shape.num_experts + 1;
  if (shape.routed == DType::kBF16 && shape.shared == DType::kBF16)
    return multiply<kUp>(context, block, args, DType::kBF16, 0, groups);
  multiply<kUp>(context, block, args, shape.shared, 0, 1);
  multiply<kUp>(context, block, args, shape.routed, 1, groups);
}

}  // namespace

std::string_view why_not_mapped(const ExpertStack& routed, const ExpertStack& shared) {
  const std::string_view reason = why_not_mapped(routed);
  return reason.empty() ? why_not_mapped(shared) : reason;
}

void grouped_experts(Context& context, const RowBlock& block) {
  const MoeShape& shape = block.shape;
  Pieces pieces = place_pieces(context, block);
  // Tiles are counted once for both types of weights.
  pieces.sort.tile_rows = std::min(grouped_tokens(shape.routed), grouped_tokens(shape.shared));
  const LaunchShape sort{.grid = {static_cast<unsigned>(sort_segments(shape, block.rows))},
                         .block = {kSortThreads}};
  launch(context, sort, device::sort_count<SortTile>, pieces.sort);
  launch(context, sort, device::sort_place<SortTile>, pieces.sort);
  device::GroupedArgs args{.tokens = static_cast<const device::Bf16*>(block.x()),
                           .source_rows = pieces.sort.source_rows,
                           .groups = {.begins = pieces.sort.begins,
                                      .counts = pieces.sort.counts,
                                      .tile_begins = pieces.sort.tile_begins},
                           .experts = {},
                           .out = pieces.inner};
  multiply_all<true>(context, block, args);
  args.tokens = pieces.inner;
  args.source_rows = nullptr;
  args.out = pieces.results;
  multiply_all<false>(context, block, args);
  finalise(context, block, pieces.results, ResultType::kBf16, pieces.sort.places);
}

}  // namespace tessera::cuda::moe
