// SPDX-License-Identifier: Apache-2.0
// What the streaming kernels have in common: the parts of a launch, and the product of one slice of
// K (a memory line of each of 16 weight rows) with activations.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/linear/linear_plan.h"

namespace tessera::cuda {

struct StreamPart {
  const std::byte* weight = nullptr;  // [out_features, row_bytes]
  const float* scale = nullptr;       // E4M3: [ceil(out / 128), scale_cols]; nullptr: 1
  void* y = nullptr;                  // [rows, out_features]
  DType y_dtype = DType::kBF16;
  int out_features = 0;
  int scale_cols = 0;
  int first = 0;  // of the launch's weight rows or tiles, all parts one after the other
  int end = 0;
};

/// Where the 16 bytes `piece` of row `row` lie in a stage: odd rows swap the halves of the line, so
/// that eight lanes that read half lines of two rows hit all banks.
__device__ __forceinline__ int stage_offset(int row, int piece) {
  constexpr int kHalfLine = StreamGeometry::kSliceBytes / device::kVectorBytes / 2;
  return row * StreamGeometry::kSliceBytes + (piece ^ (row % 2 * kHalfLine)) * device::kVectorBytes;
}

/// How a lane reads the weights of a tile and a slice. Column k of the product instruction is not
/// column k of the matrix: a lane's 16 bytes of a row serve as its pieces of several instructions,
/// and the activations are read in the same order.
template <class Element>
struct SliceOf {
  static constexpr int kElements = StreamGeometry::kSliceBytes / static_cast<int>(sizeof(Element));
  static constexpr int kVectors = kElements / 32;  // 16-byte reads of an activation row, per lane
  static constexpr int kLaneElements = device::kVectorBytes / static_cast<int>(sizeof(Element));

  static constexpr int kPerHalf = kVectors / 2;  // of these reads for half a slice

  uint4 low, high;  // of half a slice: rows lane / 4 and lane / 4 + 8

  __device__ __forceinline__ SliceOf(const std::byte* stage, int half) {
    const int row = device::lane_id() / 4, piece = device::lane_id() % 4;
    constexpr int kLower = 8 * StreamGeometry::kSliceBytes;
    const std::byte* at = stage + stage_offset(row, half * 4 + piece);
    low = *reinterpret_cast<const uint4*>(at);
    high = *reinterpret_cast<const uint4*>(at + kLower);
  }

  /// First element of this lane's vector `index` of an activation row.
  static __device__ __forceinline__ int element(int index) {
    return index / kPerHalf * (kElements / 2) + device::lane_id() % 4 * kLaneElements +
           index % kPerHalf * device::kVectorBf16;
  }

  /// Weights that meet part `step` (of 2) of the activation vector `index` (below kPerHalf) of the
  /// half.
  __device__ __forceinline__ void fragment(int index, int step, uint32_t (&a)[4]) const {
    if constexpr (sizeof(Element) == sizeof(device::Bf16)) {
      a[0] = step == 0 ? low.x : low.z;
      a[1] = step == 0 ? high.x : high.z;
      a[2] = step == 0 ? low.y : low.w;
      a[3] = step == 0 ? high.y : high.w;
    } else {
      const uint2 top = device::f8x4_to_bf16x4(word_of(low, index * 2 + step));
      const uint2 bottom = device::f8x4_to_bf16x4(word_of(high, index * 2 + step));
      a[0] = top.x, a[1] = bottom.x, a[2] = top.y, a[3] = bottom.y;
    }
  }

 private:
  static __device__ __forceinline__ uint32_t word_of(const uint4& raw, int index) {
    return index == 0 ? raw.x : index == 1 ? raw.y : index == 2 ? raw.z : raw.w;
  }
};

/// sums += weights of one tile and slice times the activations of the slice, one column tile after
/// the other.
template <class Element, int kColumnTiles>
__device__ __forceinline__ void multiply_slice(
    const std::byte* stage, const uint4 (&columns)[kColumnTiles][SliceOf<Element>::kVectors],
    float (&sums)[kColumnTiles][4]) {
  constexpr int kPerHalf = SliceOf<Element>::kPerHalf;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Keeps the compiler from decoding more weights at once than registers have room for.
    if constexpr (sizeof(Element) == 1) __syncwarp();
    const SliceOf<Element> weights(stage, half);
#pragma unroll
    for (int part = 0; part < 2 * kPerHalf; ++part) {
      const int index = part / 2, step = part % 2;
      uint32_t a[4];
      weights.fragment(index, step, a);
#pragma unroll
      for (int tile = 0; tile < kColumnTiles; ++tile) {
        const uint4& x = columns[tile][half * kPerHalf + index];
        const uint32_t b[2] = {step == 0 ? x.x : x.z, step == 0 ? x.y : x.w};
        device::mma_m16n8k16(sums[tile], a, b);
      }
    }
  }
}

}  // namespace tessera::cuda
