// SPDX-License-Identifier: Apache-2.0
// Launches for prompts: sort by expert, gate and up, down, sum. The table of instances is the list
// of what is supported.
#include <algorithm>

#include "cuda/moe/grouped_kernel.cuh"
#include "cuda/moe/moe_parts.h"
#include "cuda/moe/order_kernel.cuh"
#include "cuda/moe/sort_kernel.cuh"
#include "cuda/moe/tensor_map.h"

namespace tessera::cuda::moe {
namespace {

struct SortTile {
  static constexpr int kThreads = kSortThreads;
};

struct OrderTile {
  static constexpr int kThreads = 256;
  static constexpr int kValues = 16;  // per thread
};

template <class WeightType, int kBlockCount, int kMostTokens, bool kIsUp>
struct GroupedConfig {
  using Weight = WeightType;
  static constexpr int kBlocks = kBlockCount;
  static constexpr bool kUp = kIsUp;
  static constexpr int kTokens = kMostTokens;
  static constexpr bool kOverlap = kTokens <= kGroupedNarrowTokens;
  static constexpr int kColumnStep = kBlocks == 2 ? 16 : 64;  // single blocks: small models
  static constexpr int kStages = sizeof(Weight) == 1 ? 4 : 3;
  static constexpr int kThreads = 3 * device::kWarpgroup;
  // One producer and two consumer warpgroups share what 168 registers per thread give.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
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
GroupedKernel pick(DType weight, int blocks, int tokens) {
  using device::Bf16, device::F8;
  constexpr int kWide = kGroupedTokens, kNarrow = kGroupedNarrowTokens;
  if (weight == DType::kF8E4M3)
    return tokens <= kNarrow ? instance<GroupedConfig<F8, 2, kNarrow, kUp>>()
                             : instance<GroupedConfig<F8, 2, kWide, kUp>>();
  if (blocks == 2) return instance<GroupedConfig<Bf16, 2, kWide, kUp>>();
  return instance<GroupedConfig<Bf16, 1, kWide, kUp>>();
}

/// Pieces of the scratch memory.
struct Pieces {
  device::Bf16* inner;
  device::Bf16* results;
  device::Bf16* ordered;
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
                .ordered = reinterpret_cast<device::Bf16*>(take(sizes.ordered)),
                .sort = {}};
  pieces.sort.ids = block.ids();
  pieces.sort.histogram = take_ints(sizes.histogram);
  pieces.sort.places = take_ints(sizes.places);
  pieces.sort.source_rows = take_ints(sizes.source_rows);
  pieces.sort.begins = take_ints(sizes.tables / 3);
  pieces.sort.counts = take_ints(sizes.tables / 3);
  pieces.sort.tile_begins = take_ints(sizes.tables / 3);
  pieces.sort.taken = take_ints(sizes.taken);
  pieces.sort.rows = block.rows;
  pieces.sort.top_k = shape.top_k;
  pieces.sort.num_experts = shape.num_experts;
  return pieces;
}

/// The same rows in natural order and in that of FP8 codes; how many a routed tile has at most.
struct Tokens {
  const device::Bf16* natural;
  const device::Bf16* ordered;
  int most;
};

/// One product over the groups [first, last).
template <bool kUp>
void multiply(Context& context, const RowBlock& block, device::GroupedArgs args,
              const Tokens& tokens, int first, int last) {
  const MoeShape& shape = block.shape;
  const int weight_rows = kUp ? 2 * shape.width : shape.hidden;
  const int blocks = grouped_blocks(weight_rows), tile_rows = grouped_tile_rows(blocks);
  args.groups.first = first;
  args.groups.last = last;
  args.groups.weight_tiles = weight_rows / tile_rows;
  args.groups.taken += (kUp ? 0 : 2) + (first == 0 ? 0 : 1);  // of kGroupedLaunches
  args.experts = first == 0 ? block.shared : block.routed;
  const DType weight = first == 0 ? shape.shared : shape.routed;
  args.tokens = weight == DType::kF8E4M3 ? tokens.ordered : tokens.natural;
  args.depth = kUp ? shape.hidden : shape.width;
  args.out_width = kUp ? shape.width : shape.hidden;
  const auto map = kUp ? map_gate_up : map_down;
  CUtensorMap shared = map(block.shared, shape.width, shape.hidden, 1, tile_rows);
  // Every kernel fetches both maps: an unused one must be valid, too.
  const CUtensorMap routed =
      last > 1 ? map(block.routed, shape.width, shape.hidden, shape.num_experts, tile_rows)
               : shared;
  if (first > 0) shared = routed;
  const GroupedKernel kernel = pick<kUp>(weight, blocks, first == 0 ? kGroupedTokens : tokens.most);
  launch(context,
         {.grid = {static_cast<unsigned>(context.gpu().num_sms)},
          .block = {3 * device::kWarpgroup},
          .shared_bytes = kernel.shared_bytes},
         kernel.kernel, args, routed, shared);
}

/// The shared and the routed experts go through one launch: one kernel fits both, and neither has
/// scales.
bool alike(const MoeShape& shape) {
  return shape.shared == DType::kBF16 && shape.routed == DType::kBF16;
}

template <bool kUp>
void multiply_all(Context& context, const RowBlock& block, const device::GroupedArgs& args,
                  const Tokens& tokens) {
  const int groups = block.shape.num_experts + 1;
  if (alike(block.shape)) return multiply<kUp>(context, block, args, tokens, 0, groups);
  multiply<kUp>(context, block, args, tokens, 0, 1);
  multiply<kUp>(context, block, args, tokens, 1, groups);
}

void order_tokens(Context& context, const RowBlock& block, device::Bf16* ordered) {
  const int64_t groups = int64_t{block.rows} * block.shape.hidden / OrderTile::kValues;
  const int64_t blocks = (groups + OrderTile::kThreads - 1) / OrderTile::kThreads;
  launch(context, {.grid = {static_cast<unsigned>(blocks)}, .block = {OrderTile::kThreads}},
         device::order_for_codes<OrderTile>, static_cast<const uint4*>(block.x()),
         reinterpret_cast<uint4*>(ordered), groups);
}

}  // namespace

std::string_view why_not_grouped(const ExpertStack& routed, const ExpertStack& shared) {
  const std::string_view reason = why_not_mapped_together(routed);
  return reason.empty() ? why_not_mapped_together(shared) : reason;
}

void grouped_experts(Context& context, const RowBlock& block) {
  const MoeShape& shape = block.shape;
  Pieces pieces = place_pieces(context, block);
  pieces.sort.tile_rows = grouped_tokens(shape, block.rows);
  pieces.sort.shared_tile_rows = kGroupedTokens;
  if (!alike(shape)) {
    const int up_rows = 2 * shape.width;
    pieces.sort.shared_tile_rows = shared_tile_tokens(
        block.rows, up_rows / grouped_tile_rows(grouped_blocks(up_rows)), context.gpu().num_sms);
    order_tokens(context, block, pieces.ordered);
  }
  const LaunchShape sort{.grid = {static_cast<unsigned>(sort_segments(shape, block.rows))},
                         .block = {kSortThreads}};
  launch(context, sort, device::sort_count<SortTile>, pieces.sort);
  launch(context, sort, device::sort_place<SortTile>, pieces.sort);
  device::GroupedArgs args{.source_rows = pieces.sort.source_rows,
                           .groups = {.begins = pieces.sort.begins,
                                      .counts = pieces.sort.counts,
                                      .tile_begins = pieces.sort.tile_begins,
                                      .taken = pieces.sort.taken},
                           .experts = {},
                           .out = pieces.inner};
  multiply_all<true>(
      context, block, args,
      {static_cast<const device::Bf16*>(block.x()), pieces.ordered, pieces.sort.tile_rows});
  args.source_rows = nullptr;
  args.out = pieces.results;
  // Up leaves the rows of FP8 experts in the order that down takes them in.
  multiply_all<false>(context, block, args, {pieces.inner, pieces.inner, pieces.sort.tile_rows});
  finalise(context, block, pieces.results, ResultType::kBf16, pieces.sort.places);
}

}  // namespace tessera::cuda::moe
