// SPDX-License-Identifier: Apache-2.0
// Element types of weights, activations and state, and their exact conversions to float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tessera {

enum class DType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kI64, kI32, kU8 };

constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kF8E4M3:
    case DType::kU8: return 1;
  }
  return 0;
}

/// Name as safetensors spells it: "F32", "BF16", "F8_E4M3", ...
constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    case DType::kF8E4M3: return "F8_E4M3";
    case DType::kI64: return "I64";
    case DType::kI32: return "I32";
    case DType::kU8: return "U8";
  }
  return "?";
}

constexpr float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

/// Round to nearest even; NaN stays NaN.
constexpr uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// E4M3 "fn": bias 7, no infinity, 0x7F and 0xFF are NaN.
constexpr float f8e4m3_to_float(uint8_t bits) {
  const uint32_t sign = uint32_t{bits & 0x80U} << 24;
  const uint32_t exponent = (bits >> 3) & 0xFU;
  const uint32_t mantissa = bits & 0x7U;
  if (exponent == 0xFU && mantissa == 0x7U) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120U) << 23) | (mantissa << 20));
}

/// Round to nearest even; beyond the largest, 448, that one; NaN stays NaN.
constexpr uint8_t float_to_f8e4m3(float value) {
  constexpr uint32_t kLargest = 0x43E00000U, kLeastNormal = 0x3C800000U;  // 448, 2^-6
  constexpr uint32_t kRebias = (127U - 7U) << 3;
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return sign | 0x7FU;
  if (magnitude >= kLargest) return sign | 0x7EU;
  if (magnitude < kLeastNormal) {
    const float steps = std::bit_cast<float>(magnitude) * 0x1p9F;
    const auto whole = static_cast<uint32_t>(steps);
    const float rest = steps - static_cast<float>(whole);
    const bool up = rest > 0.5F || (rest == 0.5F && (whole & 1U) != 0);
    return static_cast<uint8_t>(sign | (whole + (up ? 1U : 0U)));
  }
  const uint32_t rounded = magnitude + 0x7FFFFU + (magnitude >> 20 & 1U);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - kRebias));
}

constexpr float f16_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1FU;
  const uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

}  // namespace tessera
