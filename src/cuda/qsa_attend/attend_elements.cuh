// SPDX-License-Identifier: Apache-2.0
// How the elements of a K/V cache become tensor-core operands: BF16 as they are; E4M3 stays packed
// in shared memory and is widened to FP16 (exactly) in registers. K and V of E4M3 change the order
// of dims inside a chunk of 16; queries and sums follow.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/mma_f16.cuh"

namespace tessera::cuda::device {

/// Dims that one MMA contracts, and that two of its column tiles cover.
inline constexpr int kAttendChunk = 16;

struct Bf16Cache {
  using Element = Bf16;
  static constexpr int kKeySteps = 2;    // MMA steps over dims that one load of keys feeds
  static constexpr int kValueTiles = 2;  // column tiles that one load of values feeds
  static constexpr int kKeyBatch = 8;    // column tiles of keys at once, as registers allow

  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_m16n8k16(d, a, b);
  }
  __device__ static void key_operand(const uint32_t (&raw)[4], int step, uint32_t (&b)[2]) {
    b[0] = raw[2 * step];
    b[1] = raw[2 * step + 1];
  }
  __device__ static void value_operand(const uint32_t (&raw)[4], int tile, uint32_t (&b)[2]) {
    b[0] = raw[2 * tile];
    b[1] = raw[2 * tile + 1];
  }
  /// 16 dims of a query, in the order of the keys.
  __device__ static void query_chunk(uint4 (&)[2]) {}

  /// Packs two weights; they become the values that the operand holds.
  __device__ static uint32_t pack(float& low, float& high) {
    const uint32_t pair = pack_bf16(low, high);
    const float2 held = unpack_bf16(pair);
    low = held.x, high = held.y;
    return pair;
  }
  /// Sums of a chunk: a lane's two columns of two neighbouring column tiles.
  __device__ static void store_chunk(float* chunk, int lane_in_quad, const float* even,
                                     const float* odd) {
    *reinterpret_cast<float2*>(chunk + 2 * lane_in_quad) = {even[0], even[1]};
    *reinterpret_cast<float2*>(chunk + kAttendChunk / 2 + 2 * lane_in_quad) = {odd[0], odd[1]};
  }
};

struct F8Cache {
  using Element = F8;
  static constexpr int kKeySteps = 4;
  static constexpr int kValueTiles = 4;
  static constexpr int kKeyBatch = 4;

  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_m16n8k16_f16(d, a, b);
  }
  /// A lane's word holds dims 4t .. 4t + 3 of a chunk, used as dims 2t, 2t + 1, 2t + 8, 2t + 9.
  __device__ static void key_operand(const uint32_t (&raw)[4], int step, uint32_t (&b)[2]) {
    b[0] = f8x2_to_f16x2(raw[step]);
    b[1] = f8x2_to_f16x2(raw[step] >> 16);
  }
  /// A lane's word holds dims 2g, 2g + 1 of two tokens: even dims make one column tile, odd dims
  /// the next.
  __device__ static void value_operand(const uint32_t (&raw)[4], int tile, uint32_t (&b)[2]) {
    constexpr uint32_t kEvenBytes = 0x4420, kOddBytes = 0x4431;
    const uint32_t order = tile % 2 == 0 ? kEvenBytes : kOddBytes;
    b[0] = f8x2_to_f16x2(__byte_perm(raw[tile / 2 * 2], 0, order));
    b[1] = f8x2_to_f16x2(__byte_perm(raw[tile / 2 * 2 + 1], 0, order));
  }
  __device__ static void query_chunk(uint4 (&chunk)[2]) {
    const auto widen = [](uint32_t pair) {
      const float2 values = unpack_bf16(pair);
      return pack_f16(values.x, values.y);
    };
    const uint4 low = chunk[0], high = chunk[1];
    chunk[0] = {widen(low.x), widen(low.z), widen(high.x), widen(high.z)};
    chunk[1] = {widen(low.y), widen(low.w), widen(high.y), widen(high.w)};
  }
  __device__ static uint32_t pack(float& low, float& high) {
    const uint32_t pair = pack_f16(low, high);
    const float2 held = unpack_f16(pair);
    low = held.x, high = held.y;
    return pair;
  }
  __device__ static void store_chunk(float* chunk, int lane_in_quad, const float* even,
                                     const float* odd) {
    *reinterpret_cast<float4*>(chunk + 4 * lane_in_quad) = {even[0], odd[0], even[1], odd[1]};
  }
};

}  // namespace tessera::cuda::device
