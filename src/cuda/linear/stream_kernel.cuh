// SPDX-License-Identifier: Apache-2.0
// Decode products at the speed of the weight stream: weight rows are the rows of the tensor core
// product, activation rows its columns. Every warp streams its own slices of K through its own ring
// in shared memory, so warps meet only where their sums are added.
#pragma once

#include "cuda/device/copy.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/linear/linear_plan.h"
#include "cuda/linear/stream_slice.cuh"

namespace tessera::cuda {

struct StreamArgs {
  const device::Bf16* x = nullptr;  // [rows, in_features]
  StreamPart parts[kMaxStreamParts];
  int rows = 0;
  int in_features = 0;
  int total_out = 0;
  int rows_per_block = 0;
};

template <class Config>
struct StreamShared {
  alignas(128) std::byte ring[Config::kWarps][Config::kStages][Config::kStageBytes];
  float sums[Config::kWarps][Config::kPassRows][Config::kSumStride];
};

/// Weight rows of one part whose sums a block keeps at once.
struct Panel {
  int part;
  int row;  // inside the part
  int rows;

  __device__ int tiles() const {
    return (rows + StreamGeometry::kTileRows - 1) / StreamGeometry::kTileRows;
  }
};

template <class Config>
__device__ __forceinline__ Panel panel_at(const StreamArgs& args, int output, int end) {
  int part = 0;
  while (output >= args.parts[part].end) ++part;
  const int stop = min(end, args.parts[part].end);
  return {part, output - args.parts[part].first,
          min(stop - output, Config::panel_rows(args.parts[part].dtype))};
}

__device__ __forceinline__ int slices_of_warp(int row_bytes) {
  const int slices = row_bytes / StreamGeometry::kSliceBytes;
  return (slices - device::warp_id() + StreamGeometry::kWarps - 1) / StreamGeometry::kWarps;
}

/// The ring of one warp: asks for stages (slice by slice, tile by tile, panel by panel, the order
/// in which they are used) and hands them out.
template <class Config>
class Feed {
 public:
  __device__ Feed(const StreamArgs& args, std::byte* ring, int begin, int end)
      : args_(args),
        ring_(ring),
        target_(ring + stage_offset(lane_row(), lane_piece())),
        output_(begin),
        end_(end) {
    open_panel();
  }

  /// All but one stage: weights are constants, so this may precede wait_for_inputs.
  __device__ __forceinline__ void fill() {
#pragma unroll
    for (int stage = 0; stage + 1 < Config::kStages; ++stage) ask();
  }

  /// The next stage, valid until the next call.
  __device__ __forceinline__ const std::byte* take() {
    device::wait_copies<Config::kStages - 2>();
    // Every lane's copies have landed, and every lane is done with the stage handed out before,
    // which is the one that is filled now.
    __syncwarp();
    ask();
    const std::byte* stage = ring_ + taken_ * Config::kStageBytes;
    taken_ = taken_ + 1 == Config::kStages ? 0 : taken_ + 1;
    return stage;
  }

 private:
  static constexpr int kPieces = Config::kSliceBytes / device::kVectorBytes;
  static constexpr int kRowStep = device::kWarp / kPieces;  // rows that a warp copies at once

  static __device__ int lane_row() { return device::lane_id() / kPieces; }
  static __device__ int lane_piece() { return device::lane_id() % kPieces; }

  /// One group of copies, empty at the end: take() counts groups.
  __device__ __forceinline__ void ask() {
    if (slices_ > 0) {
      std::byte* target = target_ + asked_ * Config::kStageBytes;
      const std::byte* source = source_ +
                                static_cast<size_t>(tile_ * Config::kTileRows) * row_bytes_ +
                                static_cast<size_t>(slice_) * Config::kRoundBytes;
#pragma unroll
      for (int row = 0; row < Config::kTileRows; row += kRowStep)
        device::copy_async_16(target + row * Config::kSliceBytes,
                              source + static_cast<size_t>(row) * row_bytes_,
                              tile_ * Config::kTileRows + row < lane_rows_);
      if (++tile_ == tiles_) {
        tile_ = 0;
        if (++slice_ == slices_) open_panel();
      }
    }
    device::commit_copies();
    asked_ = asked_ + 1 == Config::kStages ? 0 : asked_ + 1;
  }

  /// The next panel of which this warp has slices.
  __device__ __forceinline__ void open_panel() {
    tile_ = slice_ = slices_ = 0;
    while (slices_ == 0 && output_ < end_) {
      const Panel panel = panel_at<Config>(args_, output_, end_);
      output_ += panel.rows;
      const StreamPart& part = args_.parts[panel.part];
      slices_ = slices_of_warp(part.row_bytes);
      tiles_ = panel.tiles();
      lane_rows_ = panel.rows - lane_row();
      row_bytes_ = static_cast<size_t>(part.row_bytes);
      source_ = part.weight + static_cast<size_t>(panel.row + lane_row()) * row_bytes_ +
                device::warp_id() * Config::kSliceBytes + lane_piece() * device::kVectorBytes;
    }
    // The last loads are under way: what the next kernel loads early no longer delays them.
    if (slices_ == 0) device::allow_next_kernel();
  }

  const StreamArgs& args_;
  const std::byte* ring_;
  std::byte* target_;          // this lane's 16 bytes of the first rows of stage 0
  const std::byte* source_{};  // and where they come from, for tile 0 and slice 0
  size_t row_bytes_ = 0;
  int output_;  // first output after the panel
  int end_;
  int lane_rows_ = 0;  // rows of the panel from this lane's first one
  int tiles_ = 0;
  int tile_ = 0;
  int slices_ = 0;
  int slice_ = 0;
  int asked_ = 0;
  int taken_ = 0;
};

/// The activation rows of this block's pass, as columns: this lane reads column lane / 4 of each
/// column tile. Columns past the last row repeat it, and their sums are dropped.
template <class Config>
struct PassRows {
  const device::Bf16* x;  // first row of the pass
  int offset[Config::kColumnTiles];
  int first;
  int count;

  __device__ explicit PassRows(const StreamArgs& args) {
    first = static_cast<int>(blockIdx.x) * Config::kPassRows;
    count = min(args.rows - first, Config::kPassRows);
    x = args.x + static_cast<size_t>(first) * static_cast<size_t>(args.in_features);
#pragma unroll
    for (int tile = 0; tile < Config::kColumnTiles; ++tile) {
      const int column = tile * Config::kColumns + device::lane_id() / 4;
      offset[tile] = min(column, count - 1) * args.in_features;
    }
  }
};

/// This lane's activations of one slice, and for E4M3 the scales of the slice in the (at most two)
/// scale rows that a panel touches.
template <class Config, class Element>
struct SliceColumns {
  using Slice = SliceOf<Element>;
  uint4 raw[Config::kColumnTiles][Slice::kVectors];
  float scale[2] = {1.0F, 1.0F};

  __device__ __forceinline__ void load(const PassRows<Config>& rows, const StreamPart& part,
                                       int scale_row, int slice) {
    const int whole_slice = slice * Config::kWarps + device::warp_id();
#pragma unroll
    for (int tile = 0; tile < Config::kColumnTiles; ++tile)
#pragma unroll
      for (int index = 0; index < Slice::kVectors; ++index)
        raw[tile][index] = *reinterpret_cast<const uint4*>(
            rows.x + rows.offset[tile] + whole_slice * Slice::kElements + Slice::element(index));
    if constexpr (sizeof(Element) == 1) {
      static_assert(Slice::kElements == ops::kScaleBlock);
      if (part.scale == nullptr) return;
      const int last = (part.out_features - 1) / ops::kScaleBlock;
      const float* column = part.scale + whole_slice;
      scale[0] = __ldg(column + static_cast<size_t>(scale_row) * part.scale_cols);
      scale[1] = __ldg(column + static_cast<size_t>(min(scale_row + 1, last)) * part.scale_cols);
    }
  }
};

template <class Config>
using PanelSums = float[Config::kTiles][Config::kColumnTiles][4];

/// This warp's share of K for all rows of a panel.
template <class Config, class Element, int kTiles>
__device__ __forceinline__ void multiply_panel(const StreamPart& part, const Panel& panel,
                                               const PassRows<Config>& rows, Feed<Config>& feed,
                                               PanelSums<Config>& sums) {
  const int slices = slices_of_warp(part.row_bytes), tiles = panel.tiles();
  const int scale_row = panel.row / ops::kScaleBlock;
  // Rows of the panel from here on have the second scale.
  const int scale_border = (scale_row + 1) * ops::kScaleBlock - panel.row;
  SliceColumns<Config, Element> now, next;
  if (slices > 0) now.load(rows, part, scale_row, 0);
  for (int slice = 0; slice < slices; ++slice) {
    if constexpr (Config::kLoadAhead)
      if (slice + 1 < slices) next.load(rows, part, scale_row, slice + 1);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile >= tiles) break;
      const std::byte* stage = feed.take();
      if constexpr (sizeof(Element) == 1) {
        float block[Config::kColumnTiles][4] = {};
        multiply_slice<Element>(stage, now.raw, block);
        const int row = tile * Config::kTileRows + device::lane_id() / 4;
        const float top = row < scale_border ? now.scale[0] : now.scale[1];
        const float bottom = row + 8 < scale_border ? now.scale[0] : now.scale[1];
#pragma unroll
        for (int column = 0; column < Config::kColumnTiles; ++column)
#pragma unroll
          for (int value = 0; value < 4; ++value)
            sums[tile][column][value] += block[column][value] * (value < 2 ? top : bottom);
      } else {
        multiply_slice<Element>(stage, now.raw, sums[tile]);
      }
    }
    if constexpr (Config::kLoadAhead)
      now = next;
    else if (slice + 1 < slices)
      now.load(rows, part, scale_row, slice + 1);
  }
}

/// Adds the warps' shares in their order and stores the outputs of the panel.
template <class Config>
__device__ __forceinline__ void store_panel(StreamShared<Config>& shared, const StreamPart& part,
                                            const Panel& panel, const PassRows<Config>& rows,
                                            const PanelSums<Config>& sums) {
  const int lane_row = device::lane_id() / 4, lane_column = device::lane_id() % 4 * 2;
#pragma unroll
  for (int first = 0; first < Config::kTiles; first += Config::kSumTiles) {
    if (first >= panel.tiles()) break;
    __syncthreads();  // the sums stored before have been read
#pragma unroll
    for (int tile = 0; tile < Config::kSumTiles; ++tile)
#pragma unroll
      for (int columns = 0; columns < Config::kColumnTiles; ++columns)
#pragma unroll
        for (int value = 0; value < 4; ++value) {
          const int column = columns * Config::kColumns + lane_column + value % 2;
          const int row = tile * Config::kTileRows + lane_row + value / 2 * 8;
          shared.sums[device::warp_id()][column][row] = sums[first + tile][columns][value];
        }
    __syncthreads();  // every warp's share is there
    for (int index = static_cast<int>(threadIdx.x); index < rows.count * Config::kSumRows;
         index += Config::kThreads) {
      const int column = index / Config::kSumRows, row = index % Config::kSumRows;
      const int output = first * Config::kTileRows + row;
      if (output >= panel.rows) continue;
      float total = shared.sums[0][column][row];
#pragma unroll
      for (int warp = 1; warp < Config::kWarps; ++warp) total += shared.sums[warp][column][row];
      const size_t y_row = static_cast<size_t>(rows.first + column) * part.out_features;
      device::store_element(part.y_dtype, part.y, y_row + panel.row + output, total);
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    stream_linear(const __grid_constant__ StreamArgs args) {
  extern __shared__ __align__(128) unsigned char stream_shared[];
  auto& shared = *reinterpret_cast<StreamShared<Config>*>(stream_shared);
  const int begin = static_cast<int>(blockIdx.y) * args.rows_per_block;
  const int end = min(begin + args.rows_per_block, args.total_out);
  Feed<Config> feed(args, &shared.ring[device::warp_id()][0][0], begin, end);
  feed.fill();
  device::wait_for_inputs();
  const PassRows<Config> rows(args);
  for (int output = begin; output < end;) {
    const Panel panel = panel_at<Config>(args, output, end);
    const StreamPart& part = args.parts[panel.part];
    PanelSums<Config> sums = {};
    if (part.dtype == DType::kBF16)
      multiply_panel<Config, device::Bf16, Config::kTiles>(part, panel, rows, feed, sums);
    else
      multiply_panel<Config, device::F8, Config::kF8Tiles>(part, panel, rows, feed, sums);
    store_panel<Config>(shared, part, panel, rows, sums);
    output += panel.rows;
  }
}

}  // namespace tessera::cuda
