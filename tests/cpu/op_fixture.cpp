// SPDX-License-Identifier: Apache-2.0
// Random data, guarded buffers and stored weights of the op tests.
#include "cpu/op_fixture.h"

#include <algorithm>
#include <cstring>
#include <numbers>
#include <numeric>

namespace tessera::test {
namespace {
constexpr float kGuardValue = 12345.678F;
}

float Random::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - unit()));
  return static_cast<float>(radius * std::cos(2 * std::numbers::pi * unit()));
}

std::vector<float> Random::normals(size_t count, double scale) {
  std::vector<float> values(count);
  for (float& value : values) value = as_bf16(static_cast<float>(scale * double{normal()}));
  return values;
}

std::vector<int32_t> Random::permutation(int count) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (size_t last = order.size(); last > 1; --last)
    std::swap(order[last - 1], order[static_cast<size_t>(below(static_cast<int>(last)))]);
  return order;
}

Values::Values(size_t count) : storage_(count + 2 * kGuard, kGuardValue) {
  std::fill_n(data(), count, std::numeric_limits<float>::quiet_NaN());
}

Values::Values(std::span<const float> values) : Values(values.size()) {
  std::copy(values.begin(), values.end(), data());
}

bool Values::guards_intact() const {
  const auto is_guard = [](float value) { return value == kGuardValue; };
  return std::all_of(storage_.begin(), storage_.begin() + kGuard, is_guard) &&
         std::all_of(storage_.end() - kGuard, storage_.end(), is_guard);
}

bool f8e4m3_is_nan(int code) { return (code & 0x7F) == 0x7F; }

double f8e4m3_by_definition(int code) {
  const int exponent = (code >> 3) & 0xF, mantissa = code & 0x7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

Weight::Weight(Random& random, DType dtype, int out_features, int in_features)
    : dtype_(dtype),
      outs_(static_cast<size_t>(out_features)),
      ins_(static_cast<size_t>(in_features)),
      bytes_((outs_ * ins_ + 1) * dtype_bytes(dtype)),
      exact_(outs_ * ins_) {
  const size_t scale_cols = (ins_ + ops::kScaleBlock - 1) / ops::kScaleBlock;
  const size_t scale_rows = (outs_ + ops::kScaleBlock - 1) / ops::kScaleBlock;
  for (size_t block = 0; block < scale_cols * scale_rows; ++block)
    scale_.push_back(random.uniform(0.005, 0.02));
  std::byte* out = bytes_.data() + dtype_bytes(dtype);
  for (size_t index = 0; index < exact_.size(); ++index, out += dtype_bytes(dtype)) {
    const float value = random.normal();
    if (dtype == DType::kF32) {
      std::memcpy(out, &value, sizeof(value));
      exact_[index] = double{value};
    } else if (dtype == DType::kBF16) {
      const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      std::memcpy(out, &bits, sizeof(bits));
      exact_[index] = double{std::bit_cast<float>(uint32_t{bits} << 16)};
    } else {
      int code = random.below(256);
      if (f8e4m3_is_nan(code)) code = 0;
      *out = static_cast<std::byte>(code);
      const size_t row = index / ins_ / ops::kScaleBlock, col = index % ins_ / ops::kScaleBlock;
      exact_[index] = f8e4m3_by_definition(code) * double{scale_[row * scale_cols + col]};
    }
  }
}

ops::LinearWeight Weight::view() const {
  return {.data = bytes_.data() + dtype_bytes(dtype_),
          .dtype = dtype_,
          .scale = dtype_ == DType::kF8E4M3 ? scale_.data() : nullptr,
          .out_features = static_cast<int>(outs_),
          .in_features = static_cast<int>(ins_)};
}

std::vector<double> product_by_definition(std::span<const double> x, const Weight& weight) {
  std::vector<double> y(weight.outs(), 0.0);
  for (size_t out = 0; out < y.size(); ++out)
    for (size_t in = 0; in < x.size(); ++in) y[out] += x[in] * weight.at(out, in);
  return y;
}

std::vector<double> rms_by_definition(std::span<const double> x, std::span<const float> weight,
                                      double eps) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  std::vector<double> out(x.begin(), x.end());
  for (size_t index = 0; index < out.size(); ++index)
    out[index] *= factor * (1 + double{weight[index]});
  return out;
}

std::vector<double> to_double(std::span<const float> values) {
  return {values.begin(), values.end()};
}

std::vector<float> to_float(std::span<const double> values) {
  std::vector<float> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(),
                 [](double value) { return static_cast<float>(value); });
  return out;
}

}  // namespace tessera::test
