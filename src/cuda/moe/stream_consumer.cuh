// SPDX-License-Identifier: Apache-2.0
// The consumers of the streaming expert kernel: sums of a panel by all warps, then its results.
#pragma once

#include "cuda/device/grid_barrier.cuh"
#include "cuda/device/named_barrier.cuh"
#include "cuda/moe/silu_product.cuh"
#include "cuda/moe/stream_product.cuh"

namespace tessera::cuda::device {

/// [row][column] of a tile, a warp's share.
using TileSums = float[moe::StreamGeometry::kTileRows][moe::StreamGeometry::kColumns];
using StreamSums = TileSums[moe::StreamGeometry::kWarps][moe::StreamGeometry::kTiles];

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

class StreamConsumer {
 public:
  using Geometry = moe::StreamGeometry;

  __device__ __forceinline__ StreamConsumer(const StreamArgs& args, const StreamTables& tables,
                                            StreamRing* rings, StreamSums (&sums)[2])
      : args_(args), tables_(tables), ring_(rings[warp_id() / Geometry::kSetWarps]), sums_(sums) {}

  /// All panels. Between those of up and those of down the grid meets.
  __device__ __forceinline__ void run() {
    for (;;) {
      const bool was_up = is_up(panel_.phase);
      const bool more = panel_.next(args_, tables_, kStreamPhases);
      if (was_up && !is_up(panel_.phase)) meet();
      if (!more) return;
      if (args_.segments[panel_.phase].low_scale == nullptr)
        multiply<Bf16>(panel_);
      else
        multiply<F8>(panel_);
      // Every warp's share is there, and nobody reads the other buffer any more.
      sync();
      if (is_up(panel_.phase))
        store<true>(panel_);
      else
        store<false>(panel_);
      buffer_ ^= 1;
    }
  }

 private:
  static __device__ __forceinline__ void sync() {
    constexpr int kBarrier = 1;
    named_barrier_sync(kBarrier, Geometry::kConsumers);
  }
  /// Until every block's inner activations are there.
  __device__ __forceinline__ void meet() const {
    sync();  // the block's inner activations are written
    if (threadIdx.x == 0) {
      const uint64_t target = grid_arrive(args_.arrivals, gridDim.x);
      if (tables_.begins[kSharedDown] < tables_.ends[kSharedDown] ||
          tables_.begins[kRoutedDown] < tables_.ends[kRoutedDown])
        grid_wait(args_.arrivals, target);
    }
    sync();  // every block's are
  }
  static __device__ __forceinline__ int set_warp() { return warp_id() % Geometry::kSetWarps; }
  /// This warp's team; warps beyond the teams of their set belong to none.
  static __device__ __forceinline__ int team_of(const moe::StreamSplit& split) {
    return warp_id() / Geometry::kSetWarps * split.set_teams + set_warp() / split.per_team;
  }
  static __device__ __forceinline__ bool has_team(const moe::StreamSplit& split) {
    return set_warp() < split.set_teams * split.per_team;
  }

  /// The activations of this lane's column: lane / 4, or the last one, whose sums are dropped then.
  template <class Weight>
  __device__ __forceinline__ void load(const StreamPanel& panel, HeldColumn& column) const {
    const StreamSegment& segment = args_.segments[panel.phase];
    const moe::StreamSplit& split = segment.split;
    if (!has_team(split) || team_of(split) >= panel.tiles) return;
    const int last = columns_of(args_, tables_, panel) - 1;
    const StreamColumn source = column_of(args_, tables_, panel, min(lane_id() / 4, last));
    const auto depth = static_cast<size_t>(segment.depth);
    const Bf16* x = is_up(panel.phase) ? args_.x + static_cast<size_t>(source.row) * depth
                                       : args_.inner + static_cast<size_t>(source.entry) * depth;
    load_column<Weight>(x, split, set_warp() % split.per_team, column);
    order_column<Weight>(column);
  }

  /// This warp's share of a panel, tile after tile, so that a sum is four registers; the
  /// activations stay in registers for all of them. A warp without a tile in a stage only hands it
  /// back.
  template <class Weight>
  __device__ __forceinline__ void multiply(const StreamPanel& panel) {
    using Slice = StreamSlice<Weight>;
    const moe::StreamSplit& split = args_.segments[panel.phase].split;
    const int set_first = warp_id() / Geometry::kSetWarps * split.set_teams;
    const int slice = set_warp() % split.per_team;
    // Of this warp: its tiles, and its stages of a tile.
    const int tiles = has_team(split) ? panel.tiles - team_of(split) : 0;
    const int stages = (split.slices - slice + split.per_team - 1) / split.per_team;
    const std::byte* weights = ring_.stages[0][0] + set_warp() * StreamRing::kHalfSlice;
    // A panel that is not its group's last one has a tile for every warp.
    if (!panel.continues(tables_)) load<Weight>(panel, column_);
#pragma unroll 1
    for (int first = 0; first + set_first < panel.tiles; first += split.teams()) {
      const int own = first < tiles ? stages : 0;
      float sum[4] = {};
#pragma unroll
      for (int held = 0; held < Slice::kHeld; ++held) {
        if (held >= split.stages) break;
        const int stage = cursor_.stage;
        wait_barrier(&ring_.full[stage], cursor_.phase);
        __syncwarp();  // lanes may leave the wait one by one, products need them all
        if (held < own) {
          const std::byte* top = weights + stage * Geometry::kStageBytes;
          const float* scale = ring_.scales[stage][0] + set_warp();
          multiply_slice<Weight>(top, top + StreamRing::kHalfBytes,
                                 column_ + held * Slice::kVectors, scale, sum);
        }
        __syncwarp();  // every lane has read
        if (lane_id() == 0) arrive(&ring_.empty[stage]);
        cursor_.advance();
      }
      if (own > 0) {
        const int row = lane_id() / 4, pair = lane_id() % 4 * 2;
        // Divided anew: a counter beside `first` is the register that makes the loop spill.
        TileSums& sums = sums_[buffer_][warp_id()][first / split.teams()];
        *reinterpret_cast<float2*>(&sums[row][pair]) = {sum[0], sum[1]};
        *reinterpret_cast<float2*>(&sums[row + Geometry::kHalfRows][pair]) = {sum[2], sum[3]};
      }
    }
  }

  /// Adds the warps' shares in their order and stores the panel's results: a thread takes one
  /// weight row (up: and its counterpart) for four columns.
  template <bool kUp>
  __device__ __forceinline__ void store(const StreamPanel& panel) const {
    constexpr int kQuads = Geometry::kColumns / 4;
    constexpr int kRows = kUp ? Geometry::kHalfRows : Geometry::kTileRows;
    const StreamSegment& segment = args_.segments[panel.phase];
    const moe::StreamSplit& split = segment.split;
    const int columns = columns_of(args_, tables_, panel);
    // up: features; down: columns of the hidden row
    const auto width = static_cast<size_t>(segment.tiles) * kRows;
    for (int index = static_cast<int>(threadIdx.x); index < panel.tiles * kRows * kQuads;
         index += Geometry::kConsumers) {
      const int first = index % kQuads * 4, row = index / kQuads % kRows;
      const int tile = index / (kQuads * kRows);
      if (first >= columns) continue;
      const int team = tile % split.teams(), slot = tile / split.teams();
      const auto* warps = &sums_[buffer_][team / split.set_teams * Geometry::kSetWarps +
                                          team % split.set_teams * split.per_team];
      float4 low = {}, high = {};
#pragma unroll 2  // registers are scarce
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
        const int entry = column_of(args_, tables_, panel, first + column).entry;
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
  const StreamTables& tables_;
  StreamRing& ring_;
  StreamSums (&sums_)[2];  // of panels in turn
  int buffer_ = 0;
  StreamPanel panel_;
  HeldColumn column_;
  RingCursor<Geometry::kStages> cursor_;
};

#endif

}  // namespace tessera::cuda::device
