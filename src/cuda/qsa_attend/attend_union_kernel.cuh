// SPDX-License-Identifier: Apache-2.0
// Attention of prompt rows: eight neighbouring queries and the twelve heads of a K/V head run over
// the union of their blocks, each block gathered once, with a mask for every query.
#pragma once

#include "cuda/device/pdl.cuh"
#include "cuda/qsa_attend/attend_union_config.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Row head * 8 + query of the first product; absent queries and heads are zero.
__device__ inline void stage_queries(UnionShared& shared, const ops::QsaAttendArgs& args,
                                     const QueryGroup& group, int kv_head) {
  using Config = UnionAttend;
  constexpr int kRowVectors = Config::kDim / kVectorBf16,
                kLineVectors = kSwizzleBytes / kVectorBytes;
  for (int unit = static_cast<int>(threadIdx.x); unit < Config::kRows * kRowVectors;
       unit += Config::kThreads) {
    const int row = unit / kRowVectors, vector = unit % kRowVectors;
    const int head = row / Config::kQueries, query = row % Config::kQueries;
    uint4 value{};
    if (head < Config::kGroup && query < group.count) {
      const size_t from =
          static_cast<size_t>(group.first + query) * static_cast<size_t>(args.shape.heads) +
          static_cast<size_t>(kv_head * Config::kGroup + head);
      value =
          reinterpret_cast<const uint4*>(args.q)[from * kRowVectors + static_cast<size_t>(vector)];
    }
    *reinterpret_cast<uint4*>(shared.query[vector / kLineVectors] +
                              swizzled_offset(row, vector % kLineVectors)) = value;
  }
}

/// Gathers the tiles of the list, eight lanes to a block. Tokens that are not there yet become
/// zero: their memory holds anything, and a weight of zero does not silence a NaN.
__device__ inline void produce_union(UnionShared& shared, const ops::QsaCache& cache,
                                     const QueryGroup& group, int kv_head, int num_tiles) {
  using Config = UnionAttend;
  constexpr int kBlockLanes = kSwizzleBytes / kVectorBytes;
  static_assert(kWarpgroup / kBlockLanes == Config::kTileBlocks);
  const int place = static_cast<int>(threadIdx.x) / kBlockLanes, lane = lane_id() % kBlockLanes;
  const auto head = static_cast<size_t>(kv_head * Config::kPageBlocks) * Config::kBlockBytes +
                    static_cast<size_t>(lane * kVectorBytes);
  const auto copy = [&](UnionTile& tile, const ops::PageRef& ref, int page, int block, int tokens) {
    const std::byte* from = ref.pool + ref.offset + static_cast<size_t>(page) * ref.page_stride +
                            head +
                            static_cast<size_t>(block % Config::kPageBlocks) * Config::kBlockBytes;
#pragma unroll
    for (int token = 0; token < Config::kBlock; ++token)
#pragma unroll
      for (int slab = 0; slab < Config::kSlabs; ++slab)
        copy_async_16(tile[slab] + swizzled_offset(place * Config::kBlock + token, lane),
                      from + (token * Config::kSlabs + slab) * kSwizzleBytes, token < tokens);
  };
  uint32_t entry = shared.list[place];
  int page = group.pages[(entry >> 8) / Config::kPageBlocks];
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int stage = tile % Config::kStages;
    const auto freed = static_cast<uint32_t>(tile / Config::kStages % 2 ^ 1);
    const int block = static_cast<int>(entry >> 8);
    const int left = group.last_position() + 1 - block * Config::kBlock;
    const int tokens = (entry & 0xFFU) == 0 ? 0 : left;
    uint32_t next = 0;
    int next_page = 0;
    if (tile + 1 < num_tiles) {
      next = shared.list[(tile + 1) * Config::kTileBlocks + place];
      next_page = group.pages[(next >> 8) / Config::kPageBlocks];
    }
    wait_barrier(&shared.keys_empty[stage], freed);
    copy(shared.keys(stage), cache.keys, page, block, tokens);
    arrive_after_copies(&shared.keys_full[stage]);
    wait_barrier(&shared.values_empty[stage], freed);
    copy(shared.values(stage), cache.values, page, block, tokens);
    arrive_after_copies(&shared.values_full[stage]);
    entry = next;
    page = next_page;
  }
}

/// One warp group: 64 rows, that is eight heads of eight queries. A lane's query is lane / 4, its
/// two rows of every fragment belong to neighbouring heads.
class UnionConsumer {
 public:
  using Config = UnionAttend;

  __device__ UnionConsumer(UnionShared& shared, const QueryGroup& group, int consumer)
      : shared_(shared), group_(group), consumer_(consumer) {}

  __device__ void run(int num_tiles) {
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int stage = tile % Config::kStages;
      const auto parity = static_cast<uint32_t>(tile / Config::kStages % 2);
      wait_barrier(&shared_.keys_full[stage], parity);
      fence_async_proxy();  // the copies wrote through the other proxy
      score(stage);
      release(&shared_.keys_empty[stage]);
      uint32_t weights[Config::kTileTokens / 16][4];
      weigh(tile, weights);
      wait_barrier(&shared_.values_full[stage], parity);
      fence_async_proxy();
      accumulate(stage, weights);
      release(&shared_.values_empty[stage]);
    }
  }

  __device__ void write(const ops::QsaAttendArgs& args, int kv_head) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = 2 * (consumer_ * 4 + warp_id() % 4) + half;
      const float scale = 1.0F / warp_sum<4>(sum_[half]);
      if (head >= Config::kGroup || query() >= group_.count) continue;
      const size_t vector =
          static_cast<size_t>(group_.first + query()) * static_cast<size_t>(args.shape.heads) +
          static_cast<size_t>(kv_head * Config::kGroup + head);
      const auto* gates = static_cast<const Bf16*>(args.q_gate) + (2 * vector + 1) * Config::kDim;
      auto* out = static_cast<Bf16*>(args.out) + vector * Config::kDim;
#pragma unroll
      for (int column = 0; column < Config::kDim / 8; ++column) {
        const int dim = 8 * column + 2 * (lane_id() % 4);
        const float2 gate = unpack_bf16(*reinterpret_cast<const uint32_t*>(gates + dim));
        *reinterpret_cast<uint32_t*>(out + dim) =
            pack_bf16(sums_[4 * column + 2 * half] * scale * sigmoid(gate.x),
                      sums_[4 * column + 2 * half + 1] * scale * sigmoid(gate.y));
      }
    }
  }

 private:
  static constexpr int kColumns = Config::kTileTokens / 8;  // fragments of the logits

  __device__ static int query() { return lane_id() / 4; }
  __device__ static void release(uint64_t* barrier) {
    __syncwarp();
    if (lane_id() == 0) arrive(barrier);
  }

  __device__ void score(int stage) {
#pragma unroll
    for (float& logit : logits_) logit = 0;
    pin_registers(logits_);
    begin_products();
#pragma unroll
    for (int slab = 0; slab < Config::kSlabs; ++slab) {
      const uint64_t rows = tile_descriptor(shared_.query[slab] + consumer_ * 64 * kSwizzleBytes);
      const uint64_t keys = tile_descriptor(shared_.keys(stage)[slab]);
#pragma unroll
      for (int step = 0; step < kSwizzleBytes / 32; ++step)
        multiply_tiles<Config::kTileTokens>(logits_,
                                            rows + static_cast<uint64_t>(step) * kDescriptorK16,
                                            keys + static_cast<uint64_t>(step) * kDescriptorK16);
    }
    commit_products();
    wait_products<0>();
    pin_registers(logits_);
  }

  /// Bit b: the lane's query selected block b of the tile.
  __device__ uint32_t selection(int tile) const {
    const uint32_t entry =
        shared_.list[tile * Config::kTileBlocks + lane_id() % Config::kTileBlocks];
    uint32_t mine = 0;
#pragma unroll
    for (int other = 0; other < Config::kQueries; ++other) {
      const uint32_t blocks = __ballot_sync(kAllLanes, (entry >> other & 1U) != 0);
      if (other == query()) mine = blocks;
    }
    return mine;
  }

  /// Scales and masks the logits. Blocks from the first query's open one on may hold tokens behind
  /// a query.
  __device__ void mask(int tile) {
    const int lane_column = 2 * (lane_id() % 4);
    const uint32_t selected = selection(tile) >> lane_column / Config::kBlock;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const bool keep = (selected >> 2 * column & 1U) != 0;
#pragma unroll
      for (int value = 4 * column; value < 4 * column + 4; ++value)
        logits_[value] = keep ? logits_[value] * Config::kLogitScale : -kInfinity;
    }
    const uint32_t* entries = shared_.list + tile * Config::kTileBlocks;
    const int open = (group_.position + 1) / Config::kBlock;
    const bool behind = static_cast<int>(entries[lane_id() % Config::kTileBlocks] >> 8) >= open;
    if (!__any_sync(kAllLanes, behind)) return;
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const uint32_t entry = entries[2 * column + lane_column / Config::kBlock];
      const int token =
          static_cast<int>(entry >> 8) * Config::kBlock + lane_column % Config::kBlock;
#pragma unroll
      for (int value = 4 * column; value < 4 * column + 4; ++value)
        if (token + value % 2 > group_.position + query()) logits_[value] = -kInfinity;
    }
  }

  /// Weights of the tile as operands of the second product; older sums to the new peaks.
  __device__ void weigh(int tile, uint32_t (&weights)[Config::kTileTokens / 16][4]) {
    mask(tile);
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float peak = peak_[half];
#pragma unroll
      for (int column = 0; column < kColumns; ++column)
        peak =
            fmaxf(peak, fmaxf(logits_[4 * column + 2 * half], logits_[4 * column + 2 * half + 1]));
      peak = warp_max<4>(peak);
      const float base = peak == -kInfinity ? 0 : peak;  // nothing selected so far
      factor[half] = exp2f(peak_[half] - base);
      peak_[half] = peak;
      sum_[half] *= factor[half];
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        float& low = logits_[4 * column + 2 * half];
        float& high = logits_[4 * column + 2 * half + 1];
        low = exp2f(low - base);
        high = exp2f(high - base);
        sum_[half] += low + high;
        weights[column / 2][column % 2 * 2 + half] = pack_bf16(low, high);
      }
    }
    if (!__any_sync(kAllLanes, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
    for (int value = 0; value < Config::kDim / 2; ++value) sums_[value] *= factor[value / 2 % 2];
  }

  __device__ void accumulate(int stage, const uint32_t (&weights)[Config::kTileTokens / 16][4]) {
    const uint64_t values = columns_descriptor(shared_.values(stage), Config::kSlabBytes);
    pin_registers(sums_);
    begin_products();
#pragma unroll
    for (int step = 0; step < Config::kTileTokens / 16; ++step)
      multiply_weights(sums_, weights[step],
                       values + static_cast<uint64_t>(step) * kDescriptorRows16);
    commit_products();
    wait_products<0>();
    pin_registers(sums_);
  }

  UnionShared& shared_;
  const QueryGroup& group_;
  int consumer_;
  float logits_[Config::kTileTokens / 2];
  float sums_[Config::kDim / 2]{};
  float peak_[2] = {-kInfinity, -kInfinity};  // base-2 units
  float sum_[2]{};                            // of the lane's columns
};

#endif

/// Grid: K/V heads, then groups: the groups that run together read the pages of one head.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attend_union_kernel(ops::QsaAttendArgs args, Batch batch, int num_groups) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte dynamic_shared[];
  auto& shared = *reinterpret_cast<UnionShared*>(dynamic_shared);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(&shared.keys_full[stage], kWarpgroup);
      init_barrier(&shared.values_full[stage], kWarpgroup);
      init_barrier(&shared.keys_empty[stage], Config::kConsumers * kWarpgroup / kWarp);
      init_barrier(&shared.values_empty[stage], Config::kConsumers * kWarpgroup / kWarp);
    }
    fence_barrier_init();
  }
  wait_for_inputs();
  const int kv_head = static_cast<int>(blockIdx.x) / num_groups;
  const QueryGroup group = find_queries(batch, static_cast<int>(blockIdx.x) % num_groups);
  stage_queries(shared, args, group, kv_head);
  fence_async_proxy();  // the products read the queries; list_blocks orders it before them
  mark_blocks(shared, args, group);
  const int num_blocks = list_blocks(shared, group);
  const int num_tiles = (num_blocks + Config::kTileBlocks - 1) / Config::kTileBlocks;

  const int role = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (role == 0) {
    shrink_registers<Config::kProducerRegisters>();
    produce_union(shared, args.cache, group, kv_head, num_tiles);
  } else {
    grow_registers<Config::kConsumerRegisters>();
    UnionConsumer consumer(shared, group, role - 1);
    consumer.run(num_tiles);
    consumer.write(args, kv_head);
  }
  allow_next_kernel();
#endif
}

}  // namespace tessera::cuda::device
