// SPDX-License-Identifier: Apache-2.0
// How the elements of a K/V cache become tensor-core operands. Keys and values go from memory to
// registers: what a lane loads is its part of an operand, because a sum over dims (and the order
// of columns) may be any as long as both operands agree. E4M3 is widened to FP16, exactly.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/mma_f16.cuh"

namespace tessera::cuda::device {

/// Dims or tokens that one MMA contracts.
inline constexpr int kAttendChunk = 16;

struct Bf16Cache {
  using Element = Bf16;
  using ValueVector = uint4;           // of one token: the lane's dim of eight column tiles
  static constexpr int kKeySteps = 2;  // MMA steps over dims that 16 bytes of a key feed
  /// Bytes behind the dims of a query in shared memory, so that two rows meet no bank conflict.
  static constexpr int kQueryPad = 64;

  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_m16n8k16(d, a, b);
  }
  __device__ static void key_operand(const uint4& raw, int step, uint32_t (&b)[2]) {
    b[0] = step == 0 ? raw.x : raw.z;
    b[1] = step == 0 ? raw.y : raw.w;
  }
  /// Dim `dim` of two neighbouring tokens.
  __device__ static uint32_t value_pair(const uint4& even, const uint4& odd, int dim) {
    constexpr uint32_t kLowHalves = 0x5410, kHighHalves = 0x7632;
    const uint32_t low[4] = {even.x, even.y, even.z, even.w};
    const uint32_t high[4] = {odd.x, odd.y, odd.z, odd.w};
    return __byte_perm(low[dim / 2], high[dim / 2], dim % 2 == 0 ? kLowHalves : kHighHalves);
  }
  /// Two packed dims of a query as the products use them.
  __device__ static uint32_t query_pair(uint32_t pair) { return pair; }

  /// Packs two weights; they become the values that the operand holds.
  __device__ static uint32_t pack(float& low, float& high) {
    const uint32_t pair = pack_bf16(low, high);
    const float2 held = unpack_bf16(pair);
    low = held.x, high = held.y;
    return pair;
  }
};

struct F8Cache {
  using Element = F8;
  using ValueVector = uint2;
  static constexpr int kKeySteps = 4;
  static constexpr int kQueryPad = 16;

  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    mma_m16n8k16_f16(d, a, b);
  }
  __device__ static void key_operand(const uint4& raw, int step, uint32_t (&b)[2]) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    b[0] = f8x2_to_f16x2(words[step]);
    b[1] = f8x2_to_f16x2(words[step] >> 16);
  }
  __device__ static uint32_t value_pair(const uint2& even, const uint2& odd, int dim) {
    const auto byte = static_cast<uint32_t>(dim % 4);
    const uint32_t order = byte | (byte + 4) << 4;  // this byte of either word
    return f8x2_to_f16x2(__byte_perm(dim < 4 ? even.x : even.y, dim < 4 ? odd.x : odd.y, order));
  }
  __device__ static uint32_t query_pair(uint32_t pair) {
    const float2 values = unpack_bf16(pair);
    return pack_f16(values.x, values.y);
  }
  __device__ static uint32_t pack(float& low, float& high) {
    const uint32_t pair = pack_f16(low, high);
    const float2 held = unpack_f16(pair);
    low = held.x, high = held.y;
    return pair;
  }
};

}  // namespace tessera::cuda::device
