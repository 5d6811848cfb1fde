// SPDX-License-Identifier: Apache-2.0
// Rings of the streaming expert kernel. A producer warp per set of consumers asks the copy engine
// for one stage after the other, across panels, experts and the step from up to down, so the loads
// never pause.
#pragma once

#include "cuda/device/copy_arrive.cuh"
#include "cuda/device/ring_cursor.cuh"
#include "cuda/device/tensor_copy.cuh"
#include "cuda/moe/stream_work.cuh"
#include "ops/weight.h"

namespace tessera::cuda::device {

/// Of one set. Warp w of the set reads the w-th kilobyte of each half of a stage.
struct StreamRing {
  using Geometry = moe::StreamGeometry;
  static constexpr int kHalfSlice = Geometry::kHalfRows * Geometry::kSliceBytes;
  static constexpr int kHalfBytes = Geometry::kSetWarps * kHalfSlice;
  static_assert(2 * kHalfBytes == Geometry::kStageBytes);

  alignas(1024) std::byte stages[Geometry::kStages][2][kHalfBytes];
  float scales[Geometry::kStages][2][Geometry::kSetWarps];  // FP8: of the halves
  Barrier full[Geometry::kStages];
  Barrier empty[Geometry::kStages];

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  /// One thread; a fence and a block barrier must follow.
  __device__ __forceinline__ void init() {
    for (int stage = 0; stage < Geometry::kStages; ++stage) {
      // Every lane announces its scales, one of them the weights as well.
      init_barrier(&full[stage], kWarp + 1);
      init_barrier(&empty[stage], Geometry::kSetWarps);
    }
  }
#endif
};

/// How the copy engine sees the weights of a segment.
struct StreamMaps {
  CUtensorMap low;
  CUtensorMap high;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// One warp.
class StreamProducer {
 public:
  __device__ __forceinline__ StreamProducer(const StreamArgs& args, const StreamMaps* maps,
                                            const StreamTables& tables, StreamRing& ring, int set)
      : args_(args), maps_(maps), tables_(tables), ring_(ring), set_(set) {}

  /// Asks for the stages of all phases before `end_phase`, but for `most` at most.
  __device__ __forceinline__ void fill(int end_phase, int most) {
    for (int asked = 0; asked < most; ++asked) {
      if (first_ >= panel_.tiles && !open(end_phase)) return;
      ask();
      if (++stage_ < args_.segments[panel_.phase].split.stages) continue;
      stage_ = 0;
      first_ += args_.segments[panel_.phase].split.teams();
    }
  }

 private:
  using Geometry = moe::StreamGeometry;

  /// The next panel of which this set has tiles.
  __device__ __forceinline__ bool open(int end_phase) {
    while (panel_.next(args_, tables_, end_phase)) {
      first_ = set_ * args_.segments[panel_.phase].split.set_teams;
      if (first_ < panel_.tiles) return true;
    }
    first_ = 0;
    return false;
  }

  __device__ __forceinline__ void ask() {
    const StreamSegment& segment = args_.segments[panel_.phase];
    const moe::StreamSplit& split = segment.split;
    const int tiles = min(split.set_teams, panel_.tiles - first_);
    const int row = (panel_.tile + first_) * segment.step, expert = expert_of(tables_, panel_);
    const int place = cursor_.stage;
    Barrier* full = &ring_.full[place];
    wait_barrier(&ring_.empty[place], cursor_.phase ^ 1);
    if (lane_id() == 0) {
      const StreamMaps& maps = maps_[panel_.phase];
      const int box = split.per_team * StreamRing::kHalfSlice;
      arrive_expect(full, static_cast<uint32_t>(2 * tiles * box));
      for (int tile = 0; tile < tiles; ++tile) {
        const int first_row = row + tile * segment.step, slice = stage_ * split.per_team;
        copy_box(&ring_.stages[place][0][tile * box], maps.low, {0, first_row, slice, expert},
                 full);
        copy_box(&ring_.stages[place][1][tile * box], maps.high,
                 {0, first_row + segment.high_row, slice, expert}, full);
      }
    }
    if (segment.low_scale != nullptr) ask_scales(segment, tiles, row, expert);
    arrive_after_copies(full);
    cursor_.advance();
    __syncwarp();  // nobody runs ahead of the lane that asks
  }

  __device__ __forceinline__ void ask_scales(const StreamSegment& segment, int tiles, int row,
                                             int expert) {
    const int half = lane_id() / Geometry::kSetWarps, warp = lane_id() % Geometry::kSetWarps;
    const int tile = warp / segment.split.per_team;
    const int slice = stage_ * segment.split.per_team + warp % segment.split.per_team;
    if (half > 1 || tile >= tiles || slice >= segment.split.slices) return;
    const float* scale = half == 0 ? segment.low_scale + expert * segment.low_scale_stride
                                   : segment.high_scale + expert * segment.high_scale_stride;
    const int block = (row + tile * segment.step) / ops::kScaleBlock;
    copy_async_4(&ring_.scales[cursor_.stage][half][warp],
                 scale + block * segment.scale_cols + slice);
  }

  const StreamArgs& args_;
  const StreamMaps* maps_;
  const StreamTables& tables_;
  StreamRing& ring_;
  const int set_;
  StreamPanel panel_;
  int first_ = 0;  // tile of the panel that this set's first team takes next
  int stage_ = 0;  // of those tiles
  RingCursor<Geometry::kStages> cursor_;
};

#endif

}  // namespace tessera::cuda::device
