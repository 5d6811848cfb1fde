// SPDX-License-Identifier: Apache-2.0
// What every op test needs: the backends under test, reproducible random data, guarded buffers and
// stored weights.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/philox.h"
#include "ops/ops.h"
#include "support/reduced.h"
#include "support/tolerance.h"

namespace tessera::test {

/// The nearest BF16 value.
inline float as_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

struct Backend {
  const char* name;
  std::unique_ptr<ops::Ops> (*make)();
  /// What the backend rounds activations to between ops (the tests always see them as FP32).
  DType activation = DType::kF32;
  /// Why it cannot run on this machine, empty when it can; nullptr: it always can.
  std::string (*unusable)() = nullptr;
};

/// Defined by each test binary: adding a backend to the suite is one line.
std::span<const Backend> backends();

inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

inline std::string backend_name(const testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

/// Base of the suites: one object of the backend under test. Inputs of the suites are BF16 values
/// on every backend (Random::normals), so a BF16 backend differs from the definition only by the
/// roundings inside the op and of its outputs.
class OpTest : public testing::TestWithParam<Backend> {
 public:
  /// Largest relative error of one rounding to the activation type: half a unit in the last place.
  /// 0 for FP32, whose roundings the tolerances count already.
  double rounding() const { return GetParam().activation == DType::kBF16 ? 0x1p-8 : 0; }
  /// `fp32`: what an FP32 backend may be off by. `roundings`: how many roundings to the activation
  /// type lie between the op's inputs and this output, counted where they reach it undamped.
  double tolerance(double fp32, double roundings) const { return fp32 + roundings * rounding(); }
  /// The value that an activation buffer keeps; definitions use it at the specified roundings.
  double stored(double value) const {
    return rounding() == 0 ? value : double{as_bf16(static_cast<float>(value))};
  }
  std::vector<double> stored(std::vector<double> values) const {
    for (double& value : values) value = stored(value);
    return values;
  }
  /// Type of the index keys in a cache whose K and V have type `cache`.
  DType index_key_type(DType cache) const {
    return ops_->traits().index_key == DType::kBF16 ? DType::kBF16 : cache;
  }

 protected:
  void SetUp() override {
    const std::string reason = GetParam().unusable == nullptr ? "" : GetParam().unusable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    ops_ = GetParam().make();
  }

  std::unique_ptr<ops::Ops> ops_{};
};

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  double unit() { return philox_uniform(seed_, draws_++, DrawPurpose::kWeights); }
  float uniform(double low, double high) { return static_cast<float>(low + (high - low) * unit()); }
  float normal();
  int below(int limit) { return static_cast<int>(unit() * limit); }
  /// Rounded to BF16, so that every backend can hold them as activations.
  std::vector<float> normals(size_t count, double scale = 1);
  std::vector<int32_t> permutation(int count);

 private:
  uint64_t seed_;
  uint64_t draws_ = 0;
};

/// Floats that start one element off any vector alignment, between guards.
class Values {
 public:
  explicit Values(size_t count);
  explicit Values(std::span<const float> values);
  float* data() { return storage_.data() + kGuard; }
  const float* data() const { return storage_.data() + kGuard; }
  size_t size() const { return storage_.size() - 2 * kGuard; }
  std::span<const float> all() const { return {data(), size()}; }
  std::span<const float> row(size_t index, size_t width) const {
    return all().subspan(index * width, width);
  }
  bool guards_intact() const;

 private:
  static constexpr size_t kGuard = 5;  // odd, so that data() is off alignment
  std::vector<float> storage_;
};

/// A weight as a checkpoint stores it, one element off alignment, with its exact values in double.
class Weight {
 public:
  Weight(Random& random, DType dtype, int out_features, int in_features);
  ops::LinearWeight view() const;
  double at(size_t out, size_t in) const { return exact_[out * ins_ + in]; }
  size_t outs() const { return outs_; }
  size_t ins() const { return ins_; }

 private:
  DType dtype_;
  size_t outs_, ins_;
  std::vector<std::byte> bytes_;
  std::vector<float> scale_;
  std::vector<double> exact_;
};

/// E4M3 by its definition: sign, four exponent bits (bias 7), three mantissa bits, subnormals.
double f8e4m3_by_definition(int code);
bool f8e4m3_is_nan(int code);

/// y = x W^T by definition, in double.
std::vector<double> product_by_definition(std::span<const double> x, const Weight& weight);

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double silu(double x) { return x / (1 + std::exp(-x)); }
/// x / sqrt(mean x^2 + eps) * (1 + w).
std::vector<double> rms_by_definition(std::span<const double> x, std::span<const float> weight,
                                      double eps);

std::vector<double> to_double(std::span<const float> values);
std::vector<float> to_float(std::span<const double> values);

inline const char* role_name(ops::Role role) {
  return role == ops::Role::kDecode ? "decode" : "prefill";
}
inline constexpr ops::Role kRoles[] = {ops::Role::kPrefill, ops::Role::kDecode};
inline constexpr DType kWeightTypes[] = {DType::kF32, DType::kBF16, DType::kF8E4M3};
inline const std::vector<int> kRowCounts =
    sized<std::vector<int>>({1, 2, 3, 5, 17, 64, 65}, {1, 17, 65});
inline constexpr int kMaxDecodeRows = 6;
inline constexpr float kEps = 1e-6F;

}  // namespace tessera::test
