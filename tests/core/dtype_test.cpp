// SPDX-License-Identifier: Apache-2.0
// Every bit pattern of the small float types against their definition, and rounding to BF16.
#include "core/dtype.h"

#include <gtest/gtest.h>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/philox.h"

namespace tessera {
namespace {

struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
};

/// Value by the definition of the format, in double.
double value_of(uint32_t bits, const Format& format) {
  const uint32_t mantissa = bits & ((1U << format.mantissa_bits) - 1);
  const uint32_t exponent = (bits >> format.mantissa_bits) & ((1U << format.exponent_bits) - 1);
  const bool negative = ((bits >> (format.mantissa_bits + format.exponent_bits)) & 1U) != 0;
  const uint32_t last_exponent = (1U << format.exponent_bits) - 1;
  const uint32_t last_mantissa = (1U << format.mantissa_bits) - 1;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  double magnitude = 0;
  if (format.has_infinity && exponent == last_exponent)
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  else if (!format.has_infinity && exponent == last_exponent && mantissa == last_mantissa)
    magnitude = std::numeric_limits<double>::quiet_NaN();
  else if (exponent == 0)
    magnitude = std::ldexp(mantissa, 1 - bias - format.mantissa_bits);
  else
    magnitude = std::ldexp(mantissa + (1U << format.mantissa_bits),
                           static_cast<int>(exponent) - bias - format.mantissa_bits);
  return negative ? -magnitude : magnitude;
}

void expect_same(float found, double wanted, uint32_t bits) {
  if (std::isnan(wanted)) {
    EXPECT_TRUE(std::isnan(found)) << "bits " << bits;
    return;
  }
  EXPECT_EQ(static_cast<double>(found), wanted) << "bits " << bits;
  EXPECT_EQ(std::signbit(found), std::signbit(wanted)) << "bits " << bits;
}

TEST(Dtype, EveryF8E4M3Pattern) {
  for (uint32_t bits = 0; bits < 256; ++bits)
    expect_same(f8e4m3_to_float(static_cast<uint8_t>(bits)), value_of(bits, {4, 3, false}), bits);
  EXPECT_EQ(f8e4m3_to_float(0x7E), 448.0F);
}

TEST(DType, F8E4M3RoundsToTheNearest) {
  std::vector<float> values;  // of codes 0 .. 0x7E, ascending
  for (int bits = 0; bits < 0x7F; ++bits)
    values.push_back(f8e4m3_to_float(static_cast<uint8_t>(bits)));
  for (size_t code = 0; code < values.size(); ++code) {
    const float value = values[code];
    EXPECT_EQ(float_to_f8e4m3(value), code);
    EXPECT_EQ(float_to_f8e4m3(-value), code | 0x80U);
    if (code + 1 == values.size()) break;
    const float middle = value + (values[code + 1] - value) / 2;
    EXPECT_EQ(float_to_f8e4m3(middle), code % 2 == 0 ? code : code + 1) << "a tie goes to even";
    EXPECT_EQ(float_to_f8e4m3(std::nextafter(middle, 0.0F)), code);
    EXPECT_EQ(float_to_f8e4m3(std::nextafter(middle, 1000.0F)), code + 1);
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float large : {449.0F, 464.0F, 1e30F, kInfinity}) {
    EXPECT_EQ(float_to_f8e4m3(large), 0x7E);
    EXPECT_EQ(float_to_f8e4m3(-large), 0xFE);
  }
  EXPECT_EQ(float_to_f8e4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7F, 0x7F);
  EXPECT_EQ(float_to_f8e4m3(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Dtype, EveryF16Pattern) {
  for (uint32_t bits = 0; bits < 65536; ++bits)
    expect_same(f16_to_float(static_cast<uint16_t>(bits)), value_of(bits, {5, 10, true}), bits);
  EXPECT_EQ(f16_to_float(0x7BFF), 65504.0F);
}

TEST(Dtype, EveryBf16PatternAndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    expect_same(value, value_of(bits, {8, 7, true}), bits);
    const uint16_t back = float_to_bf16(value);
    if (std::isnan(value))
      EXPECT_TRUE(std::isnan(bf16_to_float(back))) << bits;
    else
      EXPECT_EQ(back, bits);
  }
}

/// Nearest of the two neighbours, ties to the even one; the neighbour above the largest finite
/// value counts as 2^128.
uint16_t nearest_bf16(float value) {
  const auto low = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  const auto high = static_cast<uint16_t>(low + 1);
  const auto magnitude = [](uint16_t bits) {
    const float as_float = std::fabs(bf16_to_float(bits));
    return std::isinf(as_float) ? std::ldexp(1.0, 128) : static_cast<double>(as_float);
  };
  const double below = std::fabs(static_cast<double>(value)) - magnitude(low);
  const double above = magnitude(high) - std::fabs(static_cast<double>(value));
  if (below != above) return below < above ? low : high;
  return (low & 1U) == 0 ? low : high;
}

TEST(Dtype, RoundsToTheNearestEvenBf16) {
  constexpr uint32_t kExponent = 0x7F800000U;
  std::vector<uint32_t> patterns;
  for (uint32_t high = 0; high < 65536; ++high)
    for (const uint32_t low : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU})
      patterns.push_back((high << 16) | low);
  for (uint32_t draw = 0; draw < 100000; ++draw)
    patterns.push_back(philox4x32({draw, 0, 0, 0}, 1)[0]);
  for (const uint32_t bits : patterns) {
    const auto value = std::bit_cast<float>(bits);
    if (std::isnan(value))
      ASSERT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << bits;
    else if ((bits & kExponent) == kExponent)
      ASSERT_EQ(float_to_bf16(value), bits >> 16);
    else
      ASSERT_EQ(float_to_bf16(value), nearest_bf16(value)) << bits;
  }
}

TEST(Dtype, NamesAndSizes) {
  EXPECT_EQ(std::string(dtype_name(DType::kF8E4M3)), "F8_E4M3");
  EXPECT_EQ(std::string(dtype_name(DType::kBF16)), "BF16");
  EXPECT_EQ(dtype_bytes(DType::kF32), sizeof(float));
  EXPECT_EQ(dtype_bytes(DType::kF16), 2U);
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2U);
  EXPECT_EQ(dtype_bytes(DType::kF8E4M3), 1U);
  EXPECT_EQ(dtype_bytes(DType::kI64), sizeof(int64_t));
}

}  // namespace
}  // namespace tessera
