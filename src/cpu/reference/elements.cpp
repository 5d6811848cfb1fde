// SPDX-License-Identifier: Apache-2.0
// Element conversions of the reference backend.
#include "cpu/reference/elements.h"

#include <cstring>

#include "core/parallel.h"

namespace tessera::cpu::reference {
namespace {

/// Through memcpy: a table in a mapped file need not be aligned to its element type.
template <class T>
T load(const void* base, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(base) + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

float load_element(DType dtype, const void* base, size_t index) {
  float value = 0;
  load_elements(dtype, base, index, {&value, 1});
  return value;
}

void load_elements(DType dtype, const void* base, size_t first, std::span<float> out) {
  const auto fill = [&](auto&& element) {
    for (size_t index = 0; index < out.size(); ++index) out[index] = element(first + index);
  };
  switch (dtype) {
    case DType::kF32: return fill([&](size_t at) { return load<float>(base, at); });
    case DType::kF16:
      return fill([&](size_t at) { return f16_to_float(load<uint16_t>(base, at)); });
    case DType::kBF16:
      return fill([&](size_t at) { return bf16_to_float(load<uint16_t>(base, at)); });
    case DType::kF8E4M3:
      return fill([&](size_t at) { return f8e4m3_to_float(load<uint8_t>(base, at)); });
    case DType::kI64:
      return fill([&](size_t at) { return static_cast<float>(load<int64_t>(base, at)); });
    case DType::kI32:
      return fill([&](size_t at) { return static_cast<float>(load<int32_t>(base, at)); });
    case DType::kU8:
      return fill([&](size_t at) { return static_cast<float>(load<uint8_t>(base, at)); });
  }
}

void store_element(DType dtype, void* base, size_t index, float value) {
  auto* bytes = static_cast<std::byte*>(base);
  if (dtype == DType::kBF16) {
    const uint16_t bits = float_to_bf16(value);
    std::memcpy(bytes + index * sizeof(bits), &bits, sizeof(bits));
  } else {
    std::memcpy(bytes + index * sizeof(value), &value, sizeof(value));
  }
}

void decode_weight_row(const ops::LinearWeight& weight, int row, std::span<double> out) {
  const auto* data =
      static_cast<const std::byte*>(weight.data) + static_cast<size_t>(row) * weight.row_bytes();
  const bool scaled = weight.dtype == DType::kF8E4M3 && weight.scale != nullptr;
  const size_t scale_row =
      static_cast<size_t>(row / ops::kScaleBlock) * static_cast<size_t>(weight.scale_cols());
  std::vector<float> stored(out.size());
  load_elements(weight.dtype, data, 0, stored);
  for (size_t col = 0; col < out.size(); ++col) {
    out[col] = double{stored[col]};
    if (scaled) out[col] *= double{weight.scale[scale_row + col / ops::kScaleBlock]};
  }
}

void product(const float* x, int rows, const ops::LinearWeight& weight, float* y) {
  const auto ins = static_cast<size_t>(weight.in_features);
  const auto outs = static_cast<size_t>(weight.out_features);
  parallel_for(weight.out_features, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<double> weights(ins);
    for (int64_t out = begin; out < end; ++out) {
      decode_weight_row(weight, static_cast<int>(out), weights);
      for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
        double sum = 0;
        for (size_t col = 0; col < ins; ++col) sum += double{x[row * ins + col]} * weights[col];
        y[row * outs + static_cast<size_t>(out)] = static_cast<float>(sum);
      }
    }
  });
}

}  // namespace tessera::cpu::reference
