// SPDX-License-Identifier: Apache-2.0
// Experts of prompts: one product per expert over its rows on warpgroup tensor cores. Weight rows
// are the 128 or 256 rows of a tile, token rows its columns, so that an expert's rows need little
// padding. One producer warpgroup fills the stages, two consumer warpgroups multiply.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/named_barrier.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/device/tensor_copy.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/moe/grouped_tiles.cuh"
#include "cuda/moe/moe_weights.h"
#include "cuda/moe/silu_product.cuh"

namespace tessera::cuda::device {

struct GroupedArgs {
  const Bf16* tokens = nullptr;          // [.., depth]
  const int32_t* source_rows = nullptr;  // [entries] row of tokens; nullptr: the entry itself
  GroupTables groups;
  moe::ExpertStack experts;  // FP8 only: BF16 weights come through the maps
  Bf16* out = nullptr;       // [entries, out_width]
  int depth = 0;
  int out_width = 0;
};

/// Config: Weight, kBlocks (m64 blocks of a consumer warpgroup), kUp, kTokens, kStages,
/// kProducerRegisters, kConsumerRegisters.
template <class Config>
struct GroupedShared {
  static constexpr int kConsumers = 2;
  static constexpr int kWeightRows = kConsumers * Config::kBlocks * 64;
  static constexpr int kFeatures = (Config::kUp ? 32 : 64) * Config::kBlocks;  // per warpgroup
  static constexpr int kChunk = 32;                                            // tokens staged
  static constexpr int kPad = 8;  // rows of the staged chunk start in different banks

  alignas(1024) std::byte weights[Config::kStages][kWeightRows * kSwizzleBytes];
  alignas(1024) std::byte tokens[Config::kStages][Config::kTokens * kSwizzleBytes];
  alignas(16) Bf16 staged[kConsumers][kChunk][kFeatures + kPad];
  Barrier full[Config::kStages];
  Barrier empty[Config::kStages];
  int rows[Config::kTokens];  // of the tokens of the producer's tile
  GroupIndex groups;
};

/// Position in the ring of stages; producer and consumers walk it alike.
template <int kStages>
struct StageCursor {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Fills the stages. A stage is full when its weights have landed and every producer thread has
/// arrived; a thread arrives for a stage only after its copies for the next one are under way.
template <class Config>
class GroupedProducer {
 public:
  using Shared = GroupedShared<Config>;
  static constexpr bool kScaled = sizeof(typename Config::Weight) == 1;
  static constexpr int kArrivals =
      kWarpgroup + (kScaled ? 0 : 1);  // the copy engine's announcement

  __device__ __forceinline__ GroupedProducer(const GroupedArgs& args, Shared& shared,
                                             const CUtensorMap& routed_map,
                                             const CUtensorMap& shared_map)
      : args_(args), shared_(shared), routed_map_(routed_map), shared_map_(shared_map) {}

  __device__ __forceinline__ void run() {
    const int tiles = shared_.groups.tiles(args_.groups);
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x))
      fill(shared_.groups.locate(args_.groups, tile));
  }

 private:
  static constexpr int kStepBytes = kSwizzleBytes;  // 64 BF16 of K
  static constexpr int kStepK = 64;
  static constexpr int kPieces = kStepBytes / kVectorBytes;
  static constexpr int kBarrier = 1;

  __device__ __forceinline__ void fill(const GroupTile& tile) {
    const auto thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    named_barrier_sync(kBarrier, kWarpgroup);  // nobody reads the previous tile's rows any more
    for (int token = thread; token < tile.tokens; token += kWarpgroup)
      shared_.rows[token] = args_.source_rows == nullptr
                                ? tile.first_entry + token
                                : args_.source_rows[tile.first_entry + token];
    named_barrier_sync(kBarrier, kWarpgroup);  // the rows are there
    const int steps = args_.depth / kStepK;
    const int piece = thread % kPieces;
    int last = 0;  // stage of the previous step
    [[maybe_unused]] uint4 codes[kScaled ? kCodeVectors : 1];
    [[maybe_unused]] const std::byte* next_codes = nullptr;
    if constexpr (kScaled) {
      next_codes = first_codes(tile);
      load_codes(next_codes, codes);
    }
    for (int step = 0; step < steps; ++step) {
      wait_barrier(&shared_.empty[cursor_.stage], cursor_.phase ^ 1);
      if constexpr (!kScaled) {
        if (thread == 0) ask_weights(tile, step);
      }
      std::byte* tokens = shared_.tokens[cursor_.stage];
      const Bf16* source = args_.tokens + step * kStepK + piece * kVectorBf16;
#pragma unroll
      for (int token = thread / kPieces; token < Config::kTokens; token += kWarpgroup / kPieces)
        if (token < tile.tokens)
          copy_async_16(
              tokens + swizzled_offset(token, piece),
              source + static_cast<size_t>(shared_.rows[token]) * static_cast<size_t>(args_.depth));
      commit_copies();
      if constexpr (kScaled) {
        store_codes(codes);
        next_codes += kStepK;
        if (step + 1 < steps) load_codes(next_codes, codes);
      }
      if (step > 0) {
        wait_copies<1>();
        publish(last);
      }
      last = cursor_.stage;
      cursor_.advance();
    }
    wait_copies<0>();
    publish(last);
  }

  /// This thread's copies for the stage have landed.
  __device__ __forceinline__ void publish(int stage) {
    fence_async_proxy();  // wgmma reads what the copies and stores of this thread wrote
    arrive(&shared_.full[stage]);
  }

  __device__ __forceinline__ void ask_weights(const GroupTile& tile, int step) {
    Barrier* barrier = &shared_.full[cursor_.stage];
    std::byte* weights = shared_.weights[cursor_.stage];
    const CUtensorMap& map = tile.expert < 0 ? shared_map_ : routed_map_;
    const int expert = max(tile.expert, 0);
    arrive_expect(barrier, Shared::kWeightRows * kSwizzleBytes);
    if constexpr (Config::kUp) {
      const int at[5] = {step * kStepK, 0, 0, tile.weight_tile * (Shared::kWeightRows / 16),
                         expert};
      copy_box(weights, map, at, barrier);
    } else {
      const int at[3] = {step * kStepK, tile.weight_tile * Shared::kWeightRows, expert};
      copy_box(weights, map, at, barrier);
    }
  }

  // FP8: a thread carries 16 codes at a time from global memory through registers.
  static constexpr int kCodePieces = kStepK / kVectorBytes;  // 16-byte loads of a row's step
  static constexpr int kCodeVectors = Shared::kWeightRows * kCodePieces / kWarpgroup;

  /// This thread's first codes of a tile. Its next ones are kRowStep tile rows further: the same
  /// matrix, and the same place in a line.
  __device__ __forceinline__ const std::byte* first_codes(const GroupTile& tile) const {
    const auto thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const moe::WeightPlace at = moe::weight_place(
        Config::kUp, tile.weight_tile * Shared::kWeightRows + thread / kCodePieces);
    const moe::MatrixStack& stack =
        Config::kUp ? (at.second ? args_.experts.up : args_.experts.gate) : args_.experts.down;
    return stack.data + max(tile.expert, 0) * stack.stride +
           static_cast<ptrdiff_t>(at.row) * args_.depth + thread % kCodePieces * kVectorBytes;
  }

  __device__ __forceinline__ void load_codes(const std::byte* from,
                                             uint4 (&codes)[kCodeVectors]) const {
    constexpr int kRowStep = kWarpgroup / kCodePieces / (Config::kUp ? 2 : 1);  // of the matrix
#pragma unroll
    for (int index = 0; index < kCodeVectors; ++index)
      codes[index] = load_streaming(from + static_cast<ptrdiff_t>(index * kRowStep) * args_.depth);
  }

  __device__ __forceinline__ void store_codes(const uint4 (&codes)[kCodeVectors]) {
    const auto thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    std::byte* weights = shared_.weights[cursor_.stage];
#pragma unroll
    for (int index = 0; index < kCodeVectors; ++index) {
      const int place = index * kWarpgroup + thread;
      const int row = place / kCodePieces, piece = 2 * (place % kCodePieces);
      const uint2 a = f8x4_to_bf16x4(codes[index].x), b = f8x4_to_bf16x4(codes[index].y);
      const uint2 c = f8x4_to_bf16x4(codes[index].z), d = f8x4_to_bf16x4(codes[index].w);
      *reinterpret_cast<uint4*>(weights + swizzled_offset(row, piece)) = {a.x, a.y, b.x, b.y};
      *reinterpret_cast<uint4*>(weights + swizzled_offset(row, piece + 1)) = {c.x, c.y, d.x, d.y};
    }
  }

  const GroupedArgs& args_;
  Shared& shared_;
  const CUtensorMap& routed_map_;
  const CUtensorMap& shared_map_;
  StageCursor<Config::kStages> cursor_;
};

/// Multiplies and stores; `group` is the consumer warpgroup, 0 or 1.
template <class Config>
class GroupedConsumer {
 public:
  using Shared = GroupedShared<Config>;
  static constexpr int kArrivals = Shared::kConsumers * kWarpgroup / kWarp;  // of an empty stage

  __device__ __forceinline__ GroupedConsumer(const GroupedArgs& args, Shared& shared, int group)
      : args_(args), shared_(shared), group_(group) {}

  __device__ __forceinline__ void run() {
    // The number of tiles is read again each time: registers are scarce here.
    for (int index = static_cast<int>(blockIdx.x); index < shared_.groups.tiles(args_.groups);
         index += static_cast<int>(gridDim.x)) {
      const GroupTile tile = shared_.groups.locate(args_.groups, index);
      // The narrowest product that holds the tokens; a column's bits are the same in each.
      if (tile.tokens <= 64)
        multiply<64>(tile);
      else if (tile.tokens <= 96)
        multiply<96>(tile);
      else if (tile.tokens <= 128 || Config::kTokens <= 128)
        multiply<128>(tile);
      else if constexpr (Config::kTokens > 128) {
        if (tile.tokens <= 160)
          multiply<160>(tile);
        else
          multiply<192>(tile);
      }
    }
  }

 private:
  static constexpr int kBlocks = Config::kBlocks;
  static constexpr bool kScaled = sizeof(typename Config::Weight) == 1;
  static constexpr int kStepK = 64, kSubsteps = 4;
  static constexpr int kBlockBytes = 64 * kSwizzleBytes;

  template <int kColumns>
  __device__ __forceinline__ void multiply(const GroupTile& tile) {
    float sum[kBlocks][kColumns / 2] = {};
    const int steps = args_.depth / kStepK;
    float2 scale = {1, 1};  // FP8: what the sums have to be multiplied with
    for (int step = 0; step < steps; ++step) {
      if constexpr (kScaled) {
        if (step * kStepK % ops::kScaleBlock == 0) change_scale<kColumns>(tile, step, scale, sum);
      }
      wait_barrier(&shared_.full[cursor_.stage], cursor_.phase);
      const uint64_t a =
          tile_descriptor(shared_.weights[cursor_.stage] + group_ * kBlocks * kBlockBytes);
      const uint64_t b = tile_descriptor(shared_.tokens[cursor_.stage]);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) pin_registers(sum[block]);
      begin_products();
#pragma unroll
      for (int substep = 0; substep < kSubsteps; ++substep)
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
          multiply_tiles<kColumns>(sum[block],
                                   a + block * (kBlockBytes >> 4) + substep * kDescriptorK16,
                                   b + substep * kDescriptorK16);
      commit_products();
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) pin_registers(sum[block]);
      if (step > 0 && !drained_) {
        wait_products<1>();  // the previous stage has been read
        release();
      }
      drained_ = false;
      previous_ = cursor_.stage;
      cursor_.advance();
    }
    drain(sum);
    drained_ = false;
    store<kColumns>(tile, scale, sum);
  }

  /// Waits for all products and gives their stage back.
  template <int kCount>
  __device__ __forceinline__ void drain(float (&sum)[kBlocks][kCount]) {
    wait_products<0>();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) pin_registers(sum[block]);
    release();
    drained_ = true;
  }

  __device__ __forceinline__ void release() {
    if (lane_id() == 0) arrive(&shared_.empty[previous_]);
  }

  /// Sums are kept in units of the current block's scale: exact codes are multiplied, and the sums
  /// are converted when the scale changes.
  template <int kColumns>
  __device__ __forceinline__ void change_scale(const GroupTile& tile, int step, float2& scale,
                                               float (&sum)[kBlocks][kColumns / 2]) {
    const float2 next = scales_of(tile, step * kStepK / ops::kScaleBlock);
    if (step > 0) {
      drain(sum);
      const float2 ratio = {__fdividef(scale.x, next.x), __fdividef(scale.y, next.y)};
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int index = 0; index < kColumns / 2; ++index)
          sum[block][index] *= index % 4 < 2 ? ratio.x : ratio.y;
    }
    scale = next;
  }

  /// Of the rows g and g + 8 of every 16: gate and up, or twice the same block of down.
  __device__ __forceinline__ float2 scales_of(const GroupTile& tile, int column) const {
    constexpr float kTiny = 1e-30F;  // a zero scale: the block vanishes, the ratios stay finite
    const int expert = max(tile.expert, 0);
    const int row = tile.weight_tile * Shared::kWeightRows + group_ * kBlocks * 64;
    const auto load = [&](const moe::MatrixStack& stack, int stack_row) {
      const float value = __ldg(stack.scale + expert * stack.scale_stride +
                                stack_row / ops::kScaleBlock * stack.scale_cols + column);
      return fabsf(value) < kTiny ? kTiny : value;
    };
    if constexpr (Config::kUp)
      return {load(args_.experts.gate, row / 2), load(args_.experts.up, row / 2)};
    const float value = load(args_.experts.down, row);
    return {value, value};
  }

  /// Through shared memory, so that a token's features leave as whole lines.
  template <int kColumns>
  __device__ __forceinline__ void store(const GroupTile& tile, float2 scale,
                                        const float (&sum)[kBlocks][kColumns / 2]) {
    constexpr int kVectors = Shared::kFeatures / kVectorBf16;
    const auto thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const int warp = thread / kWarp, barrier = 2 + group_;
    auto& staged = shared_.staged[group_];
    Bf16* out = args_.out +
                static_cast<size_t>(tile.first_entry) * static_cast<size_t>(args_.out_width) +
                (tile.weight_tile * Shared::kConsumers + group_) * Shared::kFeatures;
#pragma unroll
    for (int chunk = 0; chunk < kColumns / Shared::kChunk; ++chunk) {
      if (chunk * Shared::kChunk >= tile.tokens) break;
      named_barrier_sync(barrier, kWarpgroup);  // the previous chunk has been read
      Bf16* row = staged[lane_id()];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        uint32_t low[4], high[4];
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          const float* d = sum[block] + 4 * (chunk * 4 + part);
          const float a = d[0] * scale.x, b = d[1] * scale.x, c = d[2] * scale.y,
                      e = d[3] * scale.y;
          if constexpr (Config::kUp) {
            low[part] = pack_bf16(silu_product(a, c), silu_product(b, e));
          } else {
            low[part] = pack_bf16(a, b);
            high[part] = pack_bf16(c, e);
          }
        }
        if constexpr (Config::kUp) {
          store_matrix_x4_transposed(row + (block * 4 + warp) * 8, low);
        } else {
          store_matrix_x4_transposed(row + (block * 4 + warp) * 16, low);
          store_matrix_x4_transposed(row + (block * 4 + warp) * 16 + 8, high);
        }
      }
      named_barrier_sync(barrier, kWarpgroup);  // the chunk is complete
      for (int index = thread; index < Shared::kChunk * kVectors; index += kWarpgroup) {
        const int token = index / kVectors, piece = index % kVectors;
        if (chunk * Shared::kChunk + token >= tile.tokens) continue;
        const auto at = static_cast<size_t>(chunk * Shared::kChunk + token) *
                            static_cast<size_t>(args_.out_width) +
                        static_cast<size_t>(piece * kVectorBf16);
        *reinterpret_cast<uint4*>(out + at) =
            *reinterpret_cast<const uint4*>(staged[token] + piece * kVectorBf16);
      }
    }
  }

  const GroupedArgs& args_;
  Shared& shared_;
  int group_;
  StageCursor<Config::kStages> cursor_;
  int previous_ = 0;      // stage of the products under way
  bool drained_ = false;  // no products are under way
};

#endif

/// Persistent blocks; tiles are dealt out in order, so neighbours share an expert's weights and
/// rows in the second-level cache.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    experts_grouped(const __grid_constant__ GroupedArgs args,
                    const __grid_constant__ CUtensorMap routed_map,
                    const __grid_constant__ CUtensorMap shared_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Producer = GroupedProducer<Config>;
  using Consumer = GroupedConsumer<Config>;
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<GroupedShared<Config>*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(&shared.full[stage], Producer::kArrivals);
      init_barrier(&shared.empty[stage], Consumer::kArrivals);
    }
    fence_barrier_init();
    if constexpr (!Producer::kScaled) {
      prefetch_map(routed_map);
      prefetch_map(shared_map);
    }
  }
  wait_for_inputs();
  allow_next_kernel();
  shared.groups.load(args.groups);
  __syncthreads();  // barriers and group tables are ready
  const auto role = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (role == 0) {
    shrink_registers<Config::kProducerRegisters>();
    Producer(args, shared, routed_map, shared_map).run();
  } else {
    grow_registers<Config::kConsumerRegisters>();
    Consumer(args, shared, role - 1).run();
  }
#endif
}

}  // namespace tessera::cuda::device
