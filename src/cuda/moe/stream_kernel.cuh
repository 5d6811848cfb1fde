// SPDX-License-Identifier: Apache-2.0
// Experts of generated rows: gate and up with their product, then down, in one launch at the speed
// of memory. Rows that chose the same expert share one pass over its weights. A row's bits depend
// on its own column only: K is cut by the geometry and added in a fixed order.
#pragma once

#include "cuda/device/grid_barrier.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/moe/silu_product.cuh"
#include "cuda/moe/stream_product.cuh"

namespace tessera::cuda::device {

template <class Config>
struct StreamShared {
  using Geometry = moe::StreamGeometry;
  /// [row][column] of every tile a warp has summed.
  struct Sums {
    float values[Geometry::kWarps][Geometry::kTiles][Geometry::kTileRows][Geometry::kColumns];
  };

  StreamRing<Config> ring;
  union {
    Sums sums;
    StreamSorting sorting;
  };
  StreamTables tables;
};

template <class Config>
class Streamer {
 public:
  using Geometry = moe::StreamGeometry;

  __device__ __forceinline__ Streamer(const StreamArgs& args, StreamShared<Config>& shared)
      : args_(args), shared_(shared), feed_(args, shared.tables, shared.ring) {}

  /// Weights of the shared expert: constants, and its rows need no routing. All threads.
  __device__ __forceinline__ void ask_shared() {
    share(kSharedUp, 0);
    share(kSharedDown, 0);
    clear_counts(shared_.sorting);
    __syncthreads();  // the shared expert's ranges are there
    feed_.fill(kSharedUp + 1);
  }
  __device__ __forceinline__ void ask_routed() {
    group_pairs(shared_.tables, shared_.sorting, args_.ids, args_.rows * args_.top_k, args_.top_k);
    share(kSharedUp, shared_.tables.num_groups);
    share(kSharedDown, shared_.tables.num_groups);
    __syncthreads();  // all ranges are there
    feed_.fill(kStreamPhases);
  }

  /// All panels before `end_phase`.
  __device__ __forceinline__ void run(int end_phase) {
    StreamPanel panel, next;
    ColumnSlice ahead;
    bool more = walk_.next(args_, shared_.tables, end_phase, panel);
    if (more) load_first(panel, ahead);
    while (more) {
      PanelSums sums = {};
      const StreamSegment& segment = args_.segments[panel.phase];
      const int tiles = panel.own_tiles(segment.split);
      const Bf16* x = lane_column(panel);
      if (segment.low_scale == nullptr)
        multiply_panel<Config, Bf16>(segment.split, tiles, shared_.ring, feed_, x, ahead, sums);
      else
        multiply_panel<Config, F8>(segment.split, tiles, shared_.ring, feed_, x, ahead, sums);
      more = walk_.next(args_, shared_.tables, end_phase, next);
      if (more) load_first(next, ahead);
      add_up(panel, tiles, sums);
      panel = next;
    }
  }

  /// Until every block's inner activations are there; loads for down are under way meanwhile. All
  /// threads.
  __device__ __forceinline__ void meet() const {
    const StreamTables& tables = shared_.tables;
    __syncthreads();  // the block's inner activations are written
    if (threadIdx.x == 0) {
      const uint64_t target = grid_arrive(args_.arrivals, gridDim.x);
      if (tables.begins[kSharedDown] < tables.ends[kSharedDown] ||
          tables.begins[kRoutedDown] < tables.ends[kRoutedDown])
        grid_wait(args_.arrivals, target);
    }
    __syncthreads();  // every block's are
  }

 private:
  /// This block's ranges of one product, with `groups` of routed experts.
  __device__ __forceinline__ void share(int shared_phase, int groups) {
    if (threadIdx.x != 0) return;
    const StreamSegment& shared = args_.segments[shared_phase];
    const StreamSegment& routed = args_.segments[shared_phase + 1];
    const int shared_groups = (args_.rows + Geometry::kColumns - 1) / Geometry::kColumns;
    const moe::StreamShare share = moe::share_of(
        static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), shared_groups * shared.tiles,
        shared.row_bytes, groups * routed.tiles, routed.row_bytes);
    shared_.tables.begins[shared_phase] = share.shared_begin;
    shared_.tables.ends[shared_phase] = share.shared_end;
    shared_.tables.begins[shared_phase + 1] = share.routed_begin;
    shared_.tables.ends[shared_phase + 1] = share.routed_end;
  }

  /// The activations of this lane's column: lane / 4, or the last one, whose sums are dropped then.
  __device__ __forceinline__ const Bf16* lane_column(const StreamPanel& panel) const {
    const int last = columns_of(args_, shared_.tables, panel) - 1;
    const StreamColumn column = column_of(args_, shared_.tables, panel, min(lane_id() / 4, last));
    const auto depth = static_cast<size_t>(args_.segments[panel.phase].depth);
    return is_up(panel.phase) ? args_.x + static_cast<size_t>(column.row) * depth
                              : args_.inner + static_cast<size_t>(column.entry) * depth;
  }

  __device__ __forceinline__ void load_first(const StreamPanel& panel, ColumnSlice& ahead) const {
    const StreamSegment& segment = args_.segments[panel.phase];
    const int slice = warp_id() % segment.split.per_team;
    if (panel.own_tiles(segment.split) == 0) return;
    const Bf16* x = lane_column(panel);
    if (segment.low_scale == nullptr)
      load_column<Bf16>(x, slice, ahead);
    else
      load_column<F8>(x, slice, ahead);
  }

  /// Adds the warps' shares in their order and stores the panel's results. All threads.
  __device__ __forceinline__ void add_up(const StreamPanel& panel, int tiles,
                                         const PanelSums& sums) {
    const int row = lane_id() / 4, column = lane_id() % 4 * 2;
    __syncthreads();  // the sums of the previous panel have been read
#pragma unroll
    for (int tile = 0; tile < Geometry::kTiles; ++tile) {
      if (tile >= tiles) break;
      auto& own = shared_.sums.values[warp_id()][tile];
      *reinterpret_cast<float2*>(&own[row][column]) = {sums[tile][0], sums[tile][1]};
      *reinterpret_cast<float2*>(&own[row + Geometry::kHalfRows][column]) = {sums[tile][2],
                                                                             sums[tile][3]};
    }
    __syncthreads();  // every warp's share is there
    if (is_up(panel.phase))
      store<true>(panel);
    else
      store<false>(panel);
  }

  /// A thread adds up one weight row (up: and its counterpart) for four columns.
  template <bool kUp>
  __device__ __forceinline__ void store(const StreamPanel& panel) const {
    constexpr int kQuads = Geometry::kColumns / 4;
    constexpr int kRows = kUp ? Geometry::kHalfRows : Geometry::kTileRows;
    const StreamSegment& segment = args_.segments[panel.phase];
    const moe::StreamSplit& split = segment.split;
    const int columns = columns_of(args_, shared_.tables, panel);
    // up: features; down: columns of the hidden row
    const auto width = static_cast<size_t>(segment.tiles) * kRows;
    for (int index = static_cast<int>(threadIdx.x); index < panel.tiles * kRows * kQuads;
         index += Geometry::kThreads) {
      const int first = index % kQuads * 4, row = index / kQuads % kRows;
      const int tile = index / (kQuads * kRows);
      if (first >= columns) continue;
      const auto* warps = &shared_.sums.values[tile % split.teams * split.per_team];
      const int slot = tile / split.teams;
      float4 low = {}, high = {};
      for (int warp = 0; warp < split.per_team; ++warp) {
        add(low, warps[warp][slot][row][first]);
        if constexpr (kUp) add(high, warps[warp][slot][row + Geometry::kHalfRows][first]);
      }
      const size_t place = static_cast<size_t>((panel.tile + tile) * kRows + row);
      const float values[4] = {low.x, low.y, low.z, low.w};
      const float ups[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        if (first + column >= columns) break;
        const int entry = column_of(args_, shared_.tables, panel, first + column).entry;
        const size_t at = static_cast<size_t>(entry) * width + place;
        if constexpr (kUp)
          args_.inner[at] = from_float<Bf16>(silu_product(values[column], ups[column]));
        else
          args_.results[at] = from_float<Bf16>(values[column]);
      }
    }
  }

  static __device__ __forceinline__ void add(float4& sum, const float& first) {
    const float4 value = *reinterpret_cast<const float4*>(&first);
    sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
  }

  const StreamArgs& args_;
  StreamShared<Config>& shared_;
  StreamFeed<Config> feed_;
  StreamWalk walk_;
};

/// The grid is resident as a whole: one block per multiprocessor.
template <class Config>
__global__ void __launch_bounds__(moe::StreamGeometry::kThreads, 1)
    experts_stream(const __grid_constant__ StreamArgs args) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<StreamShared<Config>*>(memory);
  Streamer<Config> streamer(args, shared);
  streamer.ask_shared();
  wait_for_inputs();
  streamer.ask_routed();
#pragma unroll 1  // one copy of the code
  for (int end_phase = kSharedDown; end_phase <= kStreamPhases; end_phase += kSharedDown) {
    streamer.run(end_phase);
    if (end_phase == kSharedDown) streamer.meet();
  }
}

}  // namespace tessera::cuda::device
