// SPDX-License-Identifier: Apache-2.0
// Experts of generated rows: gate and up with their product, or down, at the speed of memory. Rows
// that chose the same expert share one pass over its weights as the columns of an m16n8k16 product.
// A row's bits depend on its own column only: K is cut by the geometry and added in a fixed order.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/moe/moe_weights.h"
#include "cuda/moe/silu_product.cuh"
#include "cuda/moe/stream_strip.cuh"
#include "cuda/moe/stream_work.cuh"

namespace tessera::cuda::device {

struct StreamArgs {
  const Bf16* x = nullptr;       // up: [rows, depth]; down: [rows, slots, depth]
  const int32_t* ids = nullptr;  // [rows, top_k]
  moe::ExpertStack routed, shared;
  void* out = nullptr;  // up: BF16 [rows, slots, outs]; down: FP32 [rows, slots, outs]
  int rows = 0;
  int top_k = 0;
  int outs = 0;  // rows of a gate, up or down matrix
};

/// Config: Routed, Shared (element types), kDepth, kSlices, kUp.
template <class Config>
struct StreamShared {
  // Lanes of neighbouring columns must not meet in a bank: see Strip for who reads what.
  static constexpr int kPad = sizeof(typename Config::Routed) == 1 ? 8 : 32;
  static constexpr int kSumStride = 20;

  alignas(16) Bf16 x[moe::kStreamRows][Config::kDepth + kPad];
  float sums[2][moe::kStreamWarps][moe::kStreamRows * kSumStride];
  int entries[moe::kStreamRows];  // result row of each column, -1 when it is empty
  StreamTables tables;
};

template <class Config>
class Streamer {
 public:
  static constexpr int kSlice = Config::kDepth / Config::kSlices;
  static constexpr int kTiles = moe::kStreamWarps / Config::kSlices;
  static constexpr int kHalf = 8;  // weight rows of half an m16 tile
  static constexpr int kTileRows = Config::kUp ? kHalf : 2 * kHalf;
  static constexpr int kItemRows = kTiles * kTileRows;

  struct Item {
    int tile = 0;       // >= 0: routed; ~tile: eight rows of the shared expert
    int first_row = 0;  // of the weight
  };

  __device__ __forceinline__ Streamer(const StreamArgs& args, StreamShared<Config>& shared)
      : args_(args),
        shared_(shared),
        items_(args.outs / kItemRows),
        slice_(warp_id() % Config::kSlices * kSlice) {}

  __device__ __forceinline__ int shared_items() const {
    return (args_.rows + moe::kStreamRows - 1) / moe::kStreamRows * items_;
  }
  __device__ __forceinline__ int routed_items() const { return shared_.tables.num_tiles * items_; }
  __device__ __forceinline__ Item shared_item(int index) const {
    return {~(index / items_), index % items_ * kItemRows};
  }
  __device__ __forceinline__ Item routed_item(int index) const {
    return {index / items_, index % items_ * kItemRows};
  }

  template <class Weight>
  __device__ __forceinline__ StripSource source(const Item& item) const {
    const bool routed = item.tile >= 0;
    const moe::ExpertStack& stack = routed ? args_.routed : args_.shared;
    const int expert = routed ? static_cast<int>(shared_.tables.tiles[item.tile] & 0xFFFFU) : 0;
    const int low_row = item.first_row + warp_id() / Config::kSlices * kTileRows + lane_id() / 4;
    if constexpr (Config::kUp) {
      return {row_of<Weight>(stack.gate, expert, low_row),
              row_of<Weight>(stack.up, expert, low_row),
              scale_of<Weight>(stack.gate, expert, low_row),
              scale_of<Weight>(stack.up, expert, low_row)};
    } else {
      const int high_row = low_row + kHalf;
      return {row_of<Weight>(stack.down, expert, low_row),
              row_of<Weight>(stack.down, expert, high_row),
              scale_of<Weight>(stack.down, expert, low_row),
              scale_of<Weight>(stack.down, expert, high_row)};
    }
  }

  /// Items locate(0) .. locate(count - 1); `strip` holds the weights of the first one. All threads.
  template <class Weight, class Locate>
  __device__ __forceinline__ void run(Strip<Weight, kSlice>& strip, int count, Locate&& locate) {
    using Weights = Strip<Weight, kSlice>;
    if (count <= 0) return;
    const Bf16* x = shared_.x[lane_id() / 4] + slice_ + lane_id() % 4 * Weights::kPerLane;
    Item item = locate(0);
    enter_tile(item.tile);
    for (int index = 0; index < count; ++index) {
      const bool more = index + 1 < count;
      const Item next = more ? locate(index + 1) : item;
      const StripSource next_source = source<Weight>(next);
      float sum[4] = {};
#pragma unroll
      for (int chunk = 0; chunk < Weights::kChunks; ++chunk) {
        strip.multiply(chunk, x + chunk * Weights::kChunk, sum);
        if (more) strip.load(chunk, next_source, slice_);
      }
      // Two sets of sums: one barrier per item keeps a slow reader apart from the next writer.
      auto& sums = shared_.sums[index % 2];
      float* own = sums[warp_id()] + 2 * (lane_id() % 4) * kSumStride + lane_id() / 4;
      own[0] = sum[0], own[kSumStride] = sum[1];
      own[kHalf] = sum[2], own[kSumStride + kHalf] = sum[3];
      __syncthreads();  // every slice is there
      store(sums, item.first_row);
      if (next.tile != item.tile) enter_tile(next.tile);
      item = next;
    }
  }

 private:
  static constexpr int kSumStride = StreamShared<Config>::kSumStride;

  template <class Weight>
  __device__ __forceinline__ const std::byte* row_of(const moe::MatrixStack& stack, int expert,
                                                     int row) const {
    const int column = slice_ + lane_id() % 4 * Strip<Weight, kSlice>::kPerLane;
    return stack.data + expert * stack.stride +
           (static_cast<ptrdiff_t>(row) * Config::kDepth + column) *
               static_cast<ptrdiff_t>(sizeof(Weight));
  }
  template <class Weight>
  __device__ __forceinline__ const float* scale_of(const moe::MatrixStack& stack, int expert,
                                                   int row) const {
    if constexpr (!Strip<Weight, kSlice>::kScaled) return nullptr;
    return stack.scale + expert * stack.scale_stride + row / ops::kScaleBlock * stack.scale_cols;
  }

  /// Brings the activations of a tile's rows into shared memory, a row per warp. All threads.
  __device__ __forceinline__ void enter_tile(int tile) {
    __syncthreads();  // nobody reads the rows and entries of the previous tile any more
    const int column = warp_id(), slots = args_.top_k + 1;
    int row = -1, entry = -1;
    if (tile >= 0) {
      const uint32_t packed = shared_.tables.tiles[tile];
      const int pair =
          find_pair(shared_.tables, args_.rows * args_.top_k, static_cast<int>(packed & 0xFFFFU),
                    static_cast<int>(packed >> 16) * moe::kStreamRows + column);
      if (pair >= 0) row = pair / args_.top_k, entry = pair + row;
    } else if (~tile * moe::kStreamRows + column < args_.rows) {
      row = ~tile * moe::kStreamRows + column;
      entry = row * slots + args_.top_k;
    }
    if (lane_id() == 0) shared_.entries[column] = entry;
    if (row >= 0) {
      const Bf16* from = args_.x + static_cast<size_t>(Config::kUp ? row : entry) * Config::kDepth;
#pragma unroll 1
      for (int at = lane_id() * kVectorBf16; at < Config::kDepth; at += kWarp * kVectorBf16)
        copy_async_16(shared_.x[column] + at, from + at);
      commit_copies();
      wait_copies<0>();
    }
    __syncthreads();  // the rows are there; empty columns hold anything and are never stored
  }

  __device__ __forceinline__ void store(
      const float (&sums)[moe::kStreamWarps][moe::kStreamRows * kSumStride], int first_row) const {
    for (int index = static_cast<int>(threadIdx.x); index < kItemRows * moe::kStreamRows;
         index += moe::kStreamThreads) {
      const int row = index % kItemRows, column = index / kItemRows;
      const int entry = shared_.entries[column];
      if (entry < 0) continue;
      const int place = column * kSumStride + row % kTileRows;
      const int first = row / kTileRows * Config::kSlices;
      float low = 0, high = 0;
#pragma unroll
      for (int slice = 0; slice < Config::kSlices; ++slice) {
        low += sums[first + slice][place];
        if constexpr (Config::kUp) high += sums[first + slice][place + kHalf];
      }
      const size_t at = static_cast<size_t>(entry) * static_cast<size_t>(args_.outs) +
                        static_cast<size_t>(first_row + row);
      if constexpr (Config::kUp)
        static_cast<Bf16*>(args_.out)[at] = from_float<Bf16>(silu_product(low, high));
      else
        static_cast<float*>(args_.out)[at] = low;
    }
  }

  const StreamArgs& args_;
  StreamShared<Config>& shared_;
  int items_;  // per tile
  int slice_;  // this warp's first column of K
};

/// The up kernel loads the shared expert's weights before the wait. The down kernel also groups the
/// rows and loads any expert's: the up kernel lets it start only after its own wait, so the ids are
/// there; the inner activations are not.
template <class Config>
__global__ void __launch_bounds__(moe::kStreamThreads, 2)
    experts_stream(const __grid_constant__ StreamArgs args) {
  using Routed = typename Config::Routed;
  using Shared = typename Config::Shared;
  constexpr bool kOneType = sizeof(Routed) == sizeof(Shared);
  extern __shared__ __align__(16) std::byte memory[];
  auto& shared = *reinterpret_cast<StreamShared<Config>*>(memory);
  Streamer<Config> streamer(args, shared);
  constexpr int kSlice = Streamer<Config>::kSlice;
  const int slice = warp_id() % Config::kSlices * kSlice;
  const auto block = static_cast<int>(blockIdx.x), grid = static_cast<int>(gridDim.x);
  const int shared_items = streamer.shared_items();
  const bool has_shared = block < shared_items;

  Strip<Shared, kSlice> strip;
  if (has_shared)
    strip.load_all(streamer.template source<Shared>(streamer.shared_item(block)), slice);
  clear_counts(shared.tables);
  if constexpr (Config::kUp) {
    wait_for_inputs();
    allow_next_kernel();
  }
  group_pairs(shared.tables, args.ids, args.rows * args.top_k);
  const moe::StreamShare share =
      moe::share_of(block, grid, shared_items, static_cast<int>(sizeof(Shared)),
                    streamer.routed_items(), static_cast<int>(sizeof(Routed)));
  const int num_routed = share.routed_end - share.routed_begin;
  const auto locate = [&](int index) {
    return index < share.num_shared
               ? streamer.shared_item(block + index * grid)
               : streamer.routed_item(share.routed_begin + index - share.num_shared);
  };
  if constexpr (kOneType) {
    const int count = share.num_shared + num_routed;
    if (!has_shared && count > 0)
      strip.load_all(streamer.template source<Shared>(locate(0)), slice);
    if constexpr (!Config::kUp) {
      wait_for_inputs();
      allow_next_kernel();
    }
    streamer.template run<Shared>(strip, count, locate);
  } else {
    if constexpr (!Config::kUp) {
      wait_for_inputs();
      allow_next_kernel();
    }
    streamer.template run<Shared>(strip, share.num_shared, locate);
    if (num_routed <= 0) return;
    const auto locate_routed = [&](int index) { return locate(share.num_shared + index); };
    Strip<Routed, kSlice> routed;
    routed.load_all(streamer.template source<Routed>(locate_routed(0)), slice);
    streamer.template run<Routed>(routed, num_routed, locate_routed);
  }
}

}  // namespace tessera::cuda::device
