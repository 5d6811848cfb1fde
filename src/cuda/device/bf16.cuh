// SPDX-License-Identifier: Apache-2.0
// Element types in device memory and their conversions to float: activations are BF16, weights and
// caches BF16, E4M3 or FP32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "core/dtype.h"

namespace tessera::cuda::device {

using Bf16 = __nv_bfloat16;
using F8 = __nv_fp8_e4m3;

/// 16 bytes: what one thread moves at once.
inline constexpr int kVectorBytes = 16;
inline constexpr int kVectorBf16 = kVectorBytes / 2;

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(Bf16 value) { return __bfloat162float(value); }
/// E4M3 to float by the hardware's pair conversion (exact; NaN codes stay NaN).
__device__ __forceinline__ float to_float(F8 value) { return static_cast<float>(value); }

template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ Bf16 from_float<Bf16>(float value) {
  return __float2bfloat16_rn(value);
}
/// Saturates to +-448; NaN stays NaN.
template <>
__device__ __forceinline__ F8 from_float<F8>(float value) {
  return F8(value);
}

/// The value after a round trip through BF16: a rounding point of the specification.
__device__ __forceinline__ float round_bf16(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

/// Two packed BF16 (low half first) as floats.
__device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000U)};
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

/// Eight BF16 of one 16-byte load.
__device__ __forceinline__ void unpack_bf16x8(const uint4& raw, float (&out)[8]) {
  const float2 a = unpack_bf16(raw.x), b = unpack_bf16(raw.y);
  const float2 c = unpack_bf16(raw.z), d = unpack_bf16(raw.w);
  out[0] = a.x, out[1] = a.y, out[2] = b.x, out[3] = b.y;
  out[4] = c.x, out[5] = c.y, out[6] = d.x, out[7] = d.y;
}
__device__ __forceinline__ uint4 pack_bf16x8(const float (&in)[8]) {
  return {pack_bf16(in[0], in[1]), pack_bf16(in[2], in[3]), pack_bf16(in[4], in[5]),
          pack_bf16(in[6], in[7])};
}

/// Eight values as E4M3, saturating like from_float<F8>.
__device__ __forceinline__ uint2 pack_f8x8(const float (&in)[8]) {
  const auto pair = [](float low, float high) {
    return uint32_t{__nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3)};
  };
  return {pair(in[0], in[1]) | pair(in[2], in[3]) << 16, pair(in[4], in[5]) | pair(in[6], in[7])
                                                                                  << 16};
}

/// Four E4M3 (one 32-bit word) to two packed BF16 pairs: exact, every E4M3 value is a BF16 value.
__device__ __forceinline__ uint2 f8x4_to_bf16x4(uint32_t codes) {
  const auto low = static_cast<__nv_fp8x2_storage_t>(codes & 0xFFFFU);
  const auto high = static_cast<__nv_fp8x2_storage_t>(codes >> 16);
  const __half2 first(__nv_cvt_fp8x2_to_halfraw2(low, __NV_E4M3));
  const __half2 second(__nv_cvt_fp8x2_to_halfraw2(high, __NV_E4M3));
  const float2 a = __half22float2(first), b = __half22float2(second);
  return {pack_bf16(a.x, a.y), pack_bf16(b.x, b.y)};
}

/// Element `index` of an array whose type is known at run time (generic kernels).
__device__ __forceinline__ float load_element(DType dtype, const void* base, size_t index) {
  switch (dtype) {
    case DType::kF32: return static_cast<const float*>(base)[index];
    case DType::kBF16: return to_float(static_cast<const Bf16*>(base)[index]);
    case DType::kF8E4M3: return to_float(static_cast<const F8*>(base)[index]);
    default: return __int_as_float(0x7FC00000);  // NaN: the plan refuses other types
  }
}
__device__ __forceinline__ void store_element(DType dtype, void* base, size_t index, float value) {
  switch (dtype) {
    case DType::kF32: static_cast<float*>(base)[index] = value; return;
    case DType::kBF16: static_cast<Bf16*>(base)[index] = from_float<Bf16>(value); return;
    case DType::kF8E4M3: static_cast<F8*>(base)[index] = from_float<F8>(value); return;
    default: return;
  }
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0F + __expf(-x)); }

}  // namespace tessera::cuda::device
