// SPDX-License-Identifier: Apache-2.0
// Rings of the streaming expert kernel: every warp asks for its own slices of the weights, panel
// after panel, and hands them out in the same order. The loads never pause between experts.
#pragma once

#include "cuda/device/copy.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/moe/stream_work.cuh"
#include "ops/weight.h"

namespace tessera::cuda::device {

/// Config: kStages.
template <class Config>
struct StreamRing {
  using Geometry = moe::StreamGeometry;
  alignas(128) std::byte stages[Geometry::kWarps][Config::kStages][Geometry::kStageBytes];
  float scales[Geometry::kWarps][Config::kStages][2];  // FP8: of the low and the high half
};

/// Where the 16 bytes `piece` of row `row` lie in a stage: odd rows swap the halves of the line, so
/// that eight lanes that read half lines of two rows hit all banks.
__device__ __forceinline__ int stage_place(int row, int piece) {
  constexpr int kHalfLine = moe::StreamGeometry::kSliceBytes / kVectorBytes / 2;
  return row * moe::StreamGeometry::kSliceBytes + (piece ^ (row % 2 * kHalfLine)) * kVectorBytes;
}

template <class Config>
class StreamFeed {
 public:
  __device__ __forceinline__ StreamFeed(const StreamArgs& args, const StreamTables& tables,
                                        StreamRing<Config>& ring)
      : args_(args),
        tables_(tables),
        stages_(&ring.stages[warp_id()][0][stage_place(lane_id() / kPieces, lane_id() % kPieces)]),
        scales_(&ring.scales[warp_id()][0][lane_id() % 2]) {}

  /// Asks for what fits into the ring, as far as phases before `end_phase` go. The last call, with
  /// all phases, leaves all but one stage asked for.
  __device__ __forceinline__ void fill(int end_phase) {
    end_phase_ = end_phase;
    if (left_ == 0) open_panel();
    while (asked_ + 1 < Config::kStages && (left_ > 0 || end_phase == kStreamPhases)) ask();
  }

  /// Number of the next stage, valid until the next call.
  __device__ __forceinline__ int take() {
    wait_copies<Config::kStages - 2>();
    // Every lane's copies have landed, and every lane is done with the stage handed out before,
    // which is the one that is filled now.
    __syncwarp();
    ask();
    const int stage = taken_;
    taken_ = taken_ + 1 == Config::kStages ? 0 : taken_ + 1;
    return stage;
  }

 private:
  using Geometry = moe::StreamGeometry;
  static constexpr int kPieces = Geometry::kSliceBytes / kVectorBytes;
  static constexpr int kRowStep = kWarp / kPieces;  // rows that a warp copies at once
  static_assert(2 * kRowStep == Geometry::kHalfRows);

  /// One group of copies, empty at the end: take() counts groups.
  __device__ __forceinline__ void ask() {
    if (left_ > 0) {
      std::byte* stage = stages_ + asked_ * Geometry::kStageBytes;
      const std::byte* low = low_ + offset_;
      const std::byte* high = low + half_;
      constexpr int kStepBytes = kRowStep * Geometry::kSliceBytes;
      copy_async_16(stage, low);
      copy_async_16(stage + kStepBytes, low + row_step_);
      copy_async_16(stage + 2 * kStepBytes, high);
      copy_async_16(stage + 3 * kStepBytes, high + row_step_);
      if (scale_ != nullptr && lane_id() < 2)
        copy_async_4(scales_ + 2 * asked_, scale_ + row_ / ops::kScaleBlock * scale_cols_ + slice_);
      advance();
    }
    commit_copies();
    asked_ = asked_ + 1 == Config::kStages ? 0 : asked_ + 1;
  }

  /// Tiles first, then slices.
  __device__ __forceinline__ void advance() {
    offset_ += tile_step_;
    row_ += tile_rows_;
    if (--left_ == 0) return open_panel();
    if (--tiles_left_ > 0) return;
    tiles_left_ = tiles_;
    row_ = first_row_;
    offset_ += slice_step_;
    slice_ += slice_stride_;
  }

  /// The next panel of which this warp has tiles.
  __device__ __forceinline__ void open_panel() {
    StreamPanel panel;
    while (left_ == 0 && walk_.next(args_, tables_, end_phase_, panel)) {
      const StreamSegment& segment = args_.segments[panel.phase];
      const moe::StreamSplit& split = segment.split;
      tiles_ = tiles_left_ = panel.own_tiles(split);
      left_ = tiles_ * own_slices(split);
      if (left_ == 0) continue;
      const int team = warp_id() / split.per_team, expert = expert_of(tables_, panel);
      slice_ = warp_id() % split.per_team;
      slice_stride_ = split.per_team;
      tile_rows_ = segment.step * split.teams;
      first_row_ = row_ = (panel.tile + team) * segment.step;
      row_step_ = kRowStep * segment.row_bytes;
      tile_step_ = tile_rows_ * segment.row_bytes;
      slice_step_ = slice_stride_ * Geometry::kSliceBytes - tiles_ * tile_step_;
      offset_ = 0;
      const ptrdiff_t place =
          static_cast<ptrdiff_t>(first_row_ + lane_id() / kPieces) * segment.row_bytes +
          slice_ * Geometry::kSliceBytes + lane_id() % kPieces * kVectorBytes;
      low_ = segment.low + expert * segment.low_stride + place;
      half_ = segment.high + expert * segment.high_stride + place - low_;
      const bool upper = lane_id() % 2 == 0;
      scale_ = upper ? segment.low_scale : segment.high_scale;
      scale_cols_ = segment.scale_cols;
      if (scale_ != nullptr)
        scale_ += expert * (upper ? segment.low_scale_stride : segment.high_scale_stride);
    }
    // The last loads are under way: what the next kernel loads early no longer delays them.
    if (left_ == 0 && end_phase_ == kStreamPhases) allow_next_kernel();
  }

  const StreamArgs& args_;
  const StreamTables& tables_;
  std::byte* stages_;  // this lane's 16 bytes of the first rows of stage 0
  float* scales_;
  StreamWalk walk_;
  const std::byte* low_ = nullptr;  // what this lane copies there, for the panel's first stage
  ptrdiff_t half_ = 0;              // from the low to the high half of a tile
  const float* scale_ = nullptr;
  int end_phase_ = 0;
  int left_ = 0;  // stages of the panel
  int tiles_ = 0, tiles_left_ = 0;
  int offset_ = 0;  // of the next stage, bytes
  int row_step_ = 0, tile_step_ = 0, slice_step_ = 0;
  int row_ = 0, first_row_ = 0, tile_rows_ = 0;  // rows of a matrix
  int slice_ = 0, slice_stride_ = 0;
  int scale_cols_ = 0;
  int asked_ = 0;
  int taken_ = 0;
};

}  // namespace tessera::cuda::device
