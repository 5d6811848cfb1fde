// SPDX-License-Identifier: Apache-2.0
// Multiplies the stages of the grouped products and stores the results.
#pragma once

#include "cuda/device/mma.cuh"
#include "cuda/device/named_barrier.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/moe/code_order.cuh"
#include "cuda/moe/grouped_shared.cuh"
#include "cuda/moe/silu_product.cuh"
#include "ops/weight.h"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// One of two warpgroups, `group` 0 or 1.
template <class Config>
class GroupedConsumer {
 public:
  using Shared = GroupedShared<Config>;
  static constexpr int kArrivals = Shared::kConsumers * kWarpgroup / kWarp;  // of an empty stage

  __device__ __forceinline__ GroupedConsumer(const GroupedArgs& args, Shared& shared, int group)
      : args_(args), shared_(shared), group_(group) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      wait_barrier(&shared_.full[cursor_.stage], cursor_.phase);
      const GroupTile tile = shared_.tiles[cursor_.stage];
      if (tile.tokens == 0) return;
      multiply_narrow<kLeastColumns>(tile);
    }
  }

 private:
  static constexpr int kBlocks = Config::kBlocks;
  static constexpr int kStepK = moe::kGroupedStepK, kSubsteps = kStepK / 16;
  static constexpr int kLeastColumns = 64;
  static constexpr int kBlockBytes = 64 * Shared::kWeightRowBytes;

  /// The narrowest product that holds the tokens; a column's bits are the same in each.
  template <int kColumns>
  __device__ __forceinline__ void multiply_narrow(const GroupTile& tile) {
    if constexpr (kColumns < Config::kTokens) {
      if (tile.tokens > kColumns) return multiply_narrow<kColumns + Config::kColumnStep>(tile);
    }
    float sum[kBlocks][kColumns / 2] = {};
    float2 scale = {1, 1};  // FP8: what the sums have to be multiplied with
    if constexpr (Shared::kScaled)
      multiply_codes<kColumns>(scale, sum);
    else
      multiply<kColumns>(sum);
    store<kColumns>(tile, scale, sum);
  }

  template <int kColumns>
  __device__ __forceinline__ void multiply(float (&sum)[kBlocks][kColumns / 2]) {
    const int steps = args_.depth / kStepK;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_barrier(&shared_.full[cursor_.stage], cursor_.phase);
      const uint64_t a =
          tile_descriptor(shared_.weights[cursor_.stage] + group_ * kBlocks * kBlockBytes);
      const uint64_t b = tile_descriptor(shared_.tokens[cursor_.stage]);
      pin(sum);
      begin_products();
#pragma unroll
      for (int substep = 0; substep < kSubsteps; ++substep)
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
          multiply_tiles<kColumns>(sum[block],
                                   a + block * (kBlockBytes >> 4) + substep * kDescriptorK16,
                                   b + substep * kDescriptorK16);
      commit_products();
      pin(sum);
      if (step > 0) {
        wait_products<1>();  // the previous stage has been read
        release();
      }
      previous_ = cursor_.stage;
      cursor_.advance();
    }
    finish_products(sum);
    release();
  }

  /// Codes go from shared memory to registers, where they are widened; the first operand of these
  /// products is in registers. Sums are kept in units of the current block's scale: exact codes are
  /// multiplied, and the sums are converted when the scale changes. Narrow products leave registers
  /// for widening while they run; wide ones run while the other warpgroup widens. (With two sets of
  /// weights and the widest sums the compiler puts a wait behind every product.)
  template <int kColumns>
  __device__ __forceinline__ void multiply_codes(float2& scale,
                                                 float (&sum)[kBlocks][kColumns / 2]) {
    constexpr bool kOverlap = Config::kOverlap;
    const int steps = args_.depth / kStepK, place = code_place();
    uint32_t codes[kBlocks][4];                      // of two substeps
    uint32_t weights[kOverlap ? 2 : 1][kBlocks][4];  // of one, widened
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_barrier(&shared_.full[cursor_.stage], cursor_.phase);
      const uint64_t b = tile_descriptor(shared_.tokens[cursor_.stage]);
#pragma unroll
      for (int substep = 0; substep < kSubsteps; ++substep) {
        const int half = substep % 2, set = kOverlap ? half : 0;
        if (half == 0) load_codes(place ^ substep * kVectorBytes, codes);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
          widen(codes[block][2 * half], codes[block][2 * half + 1], weights[set][block]);
        if (substep == 0) change_scale(step, scale, sum);
        pin(sum);
        pin(weights[set]);
        begin_products();
#pragma unroll
        for (int block = 0; block < kBlocks; ++block)
          multiply_tiles<kColumns>(sum[block], weights[set][block], b + substep * kDescriptorK16);
        commit_products();
        pin(sum);
        if constexpr (kOverlap) {
          wait_products<1>();  // the other set is free
          pin(weights[set ^ 1]);
          if (substep == 0 && step > 0) release();  // the previous stage has been read
        } else {
          finish_products(sum);
        }
      }
      previous_ = cursor_.stage;
      if constexpr (!kOverlap) release();
      cursor_.advance();
    }
    if constexpr (!kOverlap) return;
    finish_products(sum);
    release();
  }

  template <int kCount>
  static __device__ __forceinline__ void finish_products(float (&sum)[kBlocks][kCount]) {
    wait_products<0>();
    pin(sum);
  }

  /// Offset of what this lane asks for with load_matrix_x4: 16 codes of a row. Rows of 64 bytes are
  /// swizzled: the pieces of two rows at a time change places.
  __device__ __forceinline__ int code_place() const {
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
    const int row = lane_id() % 16, piece = lane_id() / 16;
    return group_ * kBlocks * kBlockBytes + (warp * 16 + row) * Shared::kWeightRowBytes +
           (piece ^ row / 2 % 4) * kVectorBytes;
  }

  __device__ __forceinline__ void load_codes(int place, uint32_t (&codes)[kBlocks][4]) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      load_matrix_x4(codes[block], shared_.weights[cursor_.stage] + block * kBlockBytes + place);
  }

  /// The 16 columns of K of this lane's rows g and g + 8.
  static __device__ __forceinline__ void widen(uint32_t upper, uint32_t lower,
                                               uint32_t (&weights)[4]) {
    const uint2 a = widen_codes(upper), b = widen_codes(lower);
    weights[0] = a.x, weights[1] = b.x, weights[2] = a.y, weights[3] = b.y;
  }

  /// Of the rows g and g + 8 of every 16: gate and up, or twice the same block of down.
  __device__ __forceinline__ float2 stage_scales() const {
    constexpr float kTiny = 1e-30F;  // a zero scale: the block vanishes, the ratios stay finite
    const float* scales = shared_.scales[cursor_.stage];
    const auto load = [](float value) { return fabsf(value) < kTiny ? kTiny : value; };
    if constexpr (Config::kUp) return {load(scales[0]), load(scales[1])};
    const float value = load(scales[group_]);
    return {value, value};
  }

  /// Where a block of scales begins, the sums go over to its units.
  template <int kCount>
  __device__ __forceinline__ void change_scale(int step, float2& scale,
                                               float (&sum)[kBlocks][kCount]) const {
    if (step % (ops::kScaleBlock / kStepK) != 0) return;
    const float2 next = stage_scales();
    if (step > 0) {
      finish_products(sum);
      const float2 ratio = {__fdividef(scale.x, next.x), __fdividef(scale.y, next.y)};
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int index = 0; index < kCount; ++index)
          sum[block][index] *= index % 4 < 2 ? ratio.x : ratio.y;
    }
    scale = next;
  }

  template <class Value, int kCount>
  static __device__ __forceinline__ void pin(Value (&values)[kBlocks][kCount]) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) pin_registers(values[block]);
  }

  __device__ __forceinline__ void release() {
    if (lane_id() == 0) arrive(&shared_.empty[previous_]);
  }

  /// Through shared memory, so that a token's features leave as whole lines.
  template <int kColumns>
  __device__ __forceinline__ void store(const GroupTile& tile, float2 scale,
                                        const float (&sum)[kBlocks][kColumns / 2]) {
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
    const int barrier = 2 + group_;
    constexpr int kChunks = (kColumns + Shared::kChunk - 1) / Shared::kChunk;
    named_barrier_sync(barrier, kWarpgroup);  // the previous tile's chunks have been read
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk * Shared::kChunk >= tile.tokens) break;
      auto& staged = shared_.staged[group_][chunk % Shared::kChunkBuffers];
      Bf16* row = staged[lane_id()];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        uint32_t low[4] = {}, high[4] = {};
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          const int column = chunk * 4 + part;  // of eight tokens
          if (column >= kColumns / 8) continue;
          const float* d = sum[block] + 4 * column;
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
      named_barrier_sync(barrier, kWarpgroup);  // the chunk is complete, the one before is read
      send_chunk(tile, chunk * Shared::kChunk, staged);
    }
  }

  /// The chunk's tokens from `first` on to memory.
  __device__ __forceinline__ void send_chunk(
      const GroupTile& tile, int first,
      const Bf16 (&staged)[Shared::kChunk][Shared::kFeatures + Shared::kPad]) const {
    constexpr bool kReorder = Config::kUp && Shared::kScaled;
    constexpr int kValues = kReorder ? 2 * kVectorBf16 : kVectorBf16;  // of a thread at a time
    constexpr int kItems = Shared::kFeatures / kValues;
    const auto thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    Bf16* out =
        args_.out +
        static_cast<size_t>(tile.first_entry + first) * static_cast<size_t>(args_.out_width) +
        (tile.weight_tile * Shared::kConsumers + group_) * Shared::kFeatures;
    constexpr int kUnroll = Shared::kScaled && !Config::kOverlap ? 1 : 4;  // no registers are left
#pragma unroll kUnroll
    for (int index = thread; index < Shared::kChunk * kItems; index += kWarpgroup) {
      const int token = index / kItems, feature = index % kItems * kValues;
      if (first + token >= tile.tokens) continue;
      const auto* from = reinterpret_cast<const uint4*>(staged[token] + feature);
      auto* to = reinterpret_cast<uint4*>(
          out + static_cast<size_t>(token) * static_cast<size_t>(args_.out_width) + feature);
      if constexpr (kReorder) {
        uint4 evens = from[0], odds = from[1];
        split_evens(evens, odds);
        to[0] = evens;
        to[1] = odds;
      } else {
        to[0] = from[0];
      }
    }
  }

  const GroupedArgs& args_;
  Shared& shared_;
  int group_;
  RingCursor<Config::kStages> cursor_;
  int previous_ = 0;  // stage of the products under way
};

#endif

}  // namespace tessera::cuda::device
