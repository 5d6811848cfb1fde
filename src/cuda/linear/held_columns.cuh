// SPDX-License-Identifier: Apache-2.0
// The activations that a warp of a decode product holds in registers while weight rows pass.
#pragma once

#include <type_traits>

#include "cuda/linear/stream_slice.cuh"

namespace tessera::cuda {

template <class Config>
using ElementOf = std::conditional_t<Config::kType == DType::kF8E4M3, device::F8, device::Bf16>;

/// The activation rows of a pass. Columns past the last row repeat it, and their sums are dropped.
template <class Config>
struct PassRows {
  int first;
  int count;

  __device__ PassRows(int rows, int pass)
      : first(pass * Config::kPassRows), count(min(rows - first, Config::kPassRows)) {}
};

/// Activations that meet a warp's slices of every weight row.
template <class Config>
struct HeldColumns {
  using Slice = SliceOf<ElementOf<Config>>;
  uint4 raw[Config::kSlices][Config::kColumnTiles][Slice::kVectors];

  /// Of slices first, first + kWarps, .., `count` of them.
  __device__ __forceinline__ void load(const device::Bf16* all, int in_features,
                                       const PassRows<Config>& rows, int first, int count) {
#pragma unroll
    for (int tile = 0; tile < Config::kColumnTiles; ++tile) {
      const int column = min(tile * Config::kColumns + device::lane_id() / 4, rows.count - 1);
      const device::Bf16* x =
          all + static_cast<size_t>(rows.first + column) * static_cast<size_t>(in_features);
#pragma unroll
      for (int slice = 0; slice < Config::kSlices; ++slice)
#pragma unroll
        for (int index = 0; index < Slice::kVectors; ++index)
          if (slice < count)
            raw[slice][tile][index] = *reinterpret_cast<const uint4*>(
                x + (first + slice * Config::kWarps) * Slice::kElements + Slice::element(index));
    }
  }
};

}  // namespace tessera::cuda
