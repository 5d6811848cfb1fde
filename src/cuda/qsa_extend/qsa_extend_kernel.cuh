// SPDX-License-Identifier: Apache-2.0
// Lists that go on from earlier ones, in place or not. A column is one thread's in every row, and
// rows come in ascending order: as row r reads no list before the r-th, a thread has read an entry
// of a list before it writes there, and no other thread does either.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/qsa_extend/qsa_extend_plan.h"
#include "ops/qsa.h"

namespace tessera::cuda::device {

/// What becomes of a row's list.
struct ExtendedList {
  int source = 0;
  int count = 0;       // entries that it takes over
  int completed = -1;  // block behind them; -1: none

  __device__ ExtendedList() = default;
  __device__ ExtendedList(const ops::QsaExtendArgs& args, const Batch& batch, int row)
      : source(args.source_rows[row]), count(args.from_counts[source]) {
    const int64_t seen = batch.spans[batch.row_span[row]].position + 1;
    if (seen % args.block == 0) completed = static_cast<int>(seen / args.block) - 1;
  }
  __device__ int longer_count() const { return count + (completed < 0 ? 0 : 1); }
};

/// One block.
__global__ void __launch_bounds__(kExtendMaxThreads)
    extend_lists(const __grid_constant__ ops::QsaExtendArgs args,
                 const __grid_constant__ Batch batch, int columns) {
  wait_for_inputs();
  allow_next_kernel();
  const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (int first = 0; first < batch.num_rows; first += kExtendRows) {
    const int rows = min(kExtendRows, batch.num_rows - first);
    ExtendedList lists[kExtendRows];
#pragma unroll
    for (int row = 0; row < kExtendRows; ++row)
      if (row < rows) lists[row] = ExtendedList(args, batch, first + row);
    __syncthreads();  // in place: all threads know the counts of these lists
#pragma unroll 1
    for (int column = thread; column < columns; column += static_cast<int>(blockDim.x)) {
      int32_t entries[kExtendRows];
#pragma unroll
      for (int row = 0; row < kExtendRows; ++row) {
        entries[row] = lists[row].completed;
        if (column < lists[row].count)
          entries[row] = args.from_blocks[static_cast<size_t>(lists[row].source) *
                                              static_cast<size_t>(args.from_stride) +
                                          static_cast<size_t>(column)];
      }
#pragma unroll
      for (int row = 0; row < kExtendRows; ++row)
        if (row < rows && column < lists[row].longer_count())
          args.blocks[static_cast<size_t>(first + row) * static_cast<size_t>(args.stride) +
                      static_cast<size_t>(column)] = entries[row];
    }
#pragma unroll
    for (int row = 0; row < kExtendRows; ++row)
      if (row < rows && thread == row) args.counts[first + row] = lists[row].longer_count();
  }
}

}  // namespace tessera::cuda::device
