// SPDX-License-Identifier: Apache-2.0
// The product kernels of every instruction set this processor has: against a double sum, and bit
// equality however rows, columns and threads are cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/linear_kernels.h"
#include "cpu/fast/linear_level.h"
#include "support/tolerance.h"

namespace tessera::cpu {
namespace {

using test::same_bits;
using test::sum_tolerance;

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF8E4M3};
constexpr float kUntouched = -12345.0F;

struct Shape {
  int out = 0;
  int in = 0;
};
constexpr Shape kShapes[] = {{1, 1},   {3, 64},   {6, 130},   {33, 15},  {40, 257},
                             {64, 32}, {131, 96}, {257, 300}, {300, 530}};

/// A weight with its values beside it; data starts off any alignment.
struct TestWeight {
  std::vector<unsigned char> bytes{};
  std::vector<float> scale{};
  std::vector<double> value{};
  ops::LinearWeight view;

  TestWeight(DType dtype, Shape shape, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    view.dtype = dtype;
    view.out_features = shape.out;
    view.in_features = shape.in;
    const size_t step = dtype_bytes(dtype);
    bytes.resize(view.bytes() + 1);
    const auto blocks = (shape.out + ops::kScaleBlock - 1) / ops::kScaleBlock * view.scale_cols();
    for (int block = 0; block < blocks; ++block) scale.push_back(0.5F + std::abs(normal(random)));
    for (int row = 0; row < shape.out; ++row)
      for (int col = 0; col < shape.in; ++col) {
        const size_t index = value.size();
        const auto block = static_cast<size_t>(row / ops::kScaleBlock * view.scale_cols() +
                                               col / ops::kScaleBlock);
        const float drawn = normal(random);
        auto code = static_cast<uint8_t>(random());
        if ((code & 0x7F) == 0x7F) code = 0;
        const uint16_t half = float_to_bf16(drawn);
        unsigned char* to = bytes.data() + 1 + index * step;
        switch (dtype) {
          case DType::kBF16: std::memcpy(to, &half, step); break;
          case DType::kF8E4M3: *to = code; break;
          default: std::memcpy(to, &drawn, step); break;
        }
        value.push_back(dtype == DType::kF32    ? double{drawn}
                        : dtype == DType::kBF16 ? double{bf16_to_float(half)}
                                                : double{f8e4m3_to_float(code)} * scale[block]);
      }
    view.data = bytes.data() + 1;
    view.scale = dtype == DType::kF8E4M3 ? scale.data() : nullptr;
  }

  WeightView level_view() const {
    WeightView level;
    level.data = static_cast<const unsigned char*>(view.data);
    level.scale = view.scale;
    level.row_bytes = static_cast<int64_t>(view.row_bytes());
    level.scale_cols = view.scale_cols();
    level.dtype = view.dtype;
    level.out_features = view.out_features;
    level.in_features = view.in_features;
    return level;
  }
};

std::vector<float> normals(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

void expect_product(const std::vector<float>& y, const std::vector<float>& x,
                    const TestWeight& weight, int rows) {
  const auto in = static_cast<size_t>(weight.view.in_features);
  const auto out = static_cast<size_t>(weight.view.out_features);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
    for (size_t n = 0; n < out; ++n) {
      double sum = 0, absolute = 0;
      for (size_t k = 0; k < in; ++k) {
        sum += double{x[row * in + k]} * weight.value[n * in + k];
        absolute += std::abs(double{x[row * in + k]} * weight.value[n * in + k]);
      }
      ASSERT_LE(std::abs(double{y[row * out + n]} - sum),
                sum_tolerance(static_cast<double>(in)) * absolute)
          << "row " << row << " output " << n;
    }
}

class LinearLevel : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const LevelList list = supported_levels();
    if (GetParam() >= list.count) GTEST_SKIP() << "this processor has " << list.count << " levels";
    level_ = list.levels[GetParam()];
  }

  std::vector<float> dot(const TestWeight& weight, const std::vector<float>& x, int first_row,
                         int rows, int cut) const {
    const int in = weight.view.in_features, out = weight.view.out_features;
    std::vector<float> y(static_cast<size_t>(rows * out), kUntouched);
    std::vector<const float*> from;
    std::vector<float*> to;
    for (int row = 0; row < rows; ++row) {
      from.push_back(x.data() + (first_row + row) * in);
      to.push_back(y.data() + row * out);
    }
    for (int first = 0; first < out; first += cut)
      level_->dot(
          {weight.level_view(), first, std::min(first + cut, out), from.data(), to.data(), rows});
    return y;
  }

  std::vector<float> columns(const TestWeight& weight, const std::vector<float>& x, int first_row,
                             int rows, int cut) const {
    const int in = weight.view.in_features, out = weight.view.out_features;
    std::vector<float> y(static_cast<size_t>(rows * out), kUntouched);
    for (int first = 0; first < out; first += cut)
      level_->columns({weight.level_view(), first, std::min(first + cut, out),
                       x.data() + first_row * in, in, y.data(), out, rows, workspace_.get()});
    return y;
  }

  const LevelKernels* level_ = nullptr;
  std::unique_ptr<float[]> workspace_ = std::make_unique<float[]>(kWorkspaceFloats);
};

TEST_P(LinearLevel, DotMatchesADoubleSumAndRowsDoNotInteract) {
  constexpr int kRows = 11;
  for (const DType dtype : kTypes)
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << level_->name << ' ' << dtype_name(dtype) << ' '
                                      << shape.out << 'x' << shape.in);
      const TestWeight weight(dtype, shape, 1);
      const auto x = normals(static_cast<size_t>(kRows * shape.in), 2);
      const auto all = dot(weight, x, 0, kRows, shape.out);
      ASSERT_NO_FATAL_FAILURE(expect_product(all, x, weight, kRows));
      for (int row = 0; row < kRows; ++row) {
        const auto alone = dot(weight, x, row, 1, 5);
        const std::span<const float> batched(all.data() + row * shape.out, alone.size());
        ASSERT_TRUE(same_bits(alone, batched)) << "row " << row;
      }
    }
}

TEST_P(LinearLevel, ColumnsMatchADoubleSumAndRowsDoNotInteract) {
  constexpr int kRows = 33;
  for (const DType dtype : kTypes)
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << level_->name << ' ' << dtype_name(dtype) << ' '
                                      << shape.out << 'x' << shape.in);
      const TestWeight weight(dtype, shape, 3);
      const auto x = normals(static_cast<size_t>(kRows * shape.in), 4);
      const auto all = columns(weight, x, 0, kRows, shape.out);
      ASSERT_NO_FATAL_FAILURE(expect_product(all, x, weight, kRows));
      for (const int rows : {1, 2, 5, 13, 14, 15}) {
        const auto part = columns(weight, x, kRows - rows, rows, kColumnGrain);
        const std::span<const float> batched(all.data() + (kRows - rows) * shape.out, part.size());
        ASSERT_TRUE(same_bits(part, batched)) << rows << " rows";
      }
    }
}

TEST_P(LinearLevel, DecodesEveryE4M3Code) {
  constexpr int kCodes = 256;
  for (const int in : {1, 64, 128, 200}) {  // tail, vector, whole block, block and tail
    TestWeight weight(DType::kF8E4M3, {kCodes, in}, 5);
    std::fill(weight.bytes.begin(), weight.bytes.end(), uint8_t{0});
    for (int code = 0; code < kCodes; ++code)
      weight.bytes[static_cast<size_t>(1 + code * in + in - 1)] = static_cast<uint8_t>(code);
    std::fill(weight.scale.begin(), weight.scale.end(), 0.75F);
    const std::vector<float> x(static_cast<size_t>(in), 2.0F);
    for (const auto& y : {dot(weight, x, 0, 1, kCodes), columns(weight, x, 0, 1, kCodes)})
      for (int code = 0; code < kCodes; ++code) {
        const float want = f8e4m3_to_float(static_cast<uint8_t>(code)) * 1.5F;
        const float got = y[static_cast<size_t>(code)];
        if (std::isnan(want))
          EXPECT_TRUE(std::isnan(got)) << level_->name << " code " << code << " in " << in;
        else
          EXPECT_EQ(got, want) << level_->name << " code " << code << " in " << in;
      }
  }
}

TEST_P(LinearLevel, GemmMatchesADoubleSumInEveryForm) {
  constexpr int kPad = 3;
  constexpr GemmSize kSizes[] = {{1, 1, 1}, {5, 33, 7}, {14, 64, 64}, {29, 70, 300}, {64, 17, 129}};
  for (const GemmSize& size : kSizes)
    for (const GemmForm form : {GemmForm::kNT, GemmForm::kNN, GemmForm::kTN})
      for (const bool accumulate : {false, true}) {
        const bool a_across = form == GemmForm::kTN, b_down = form == GemmForm::kNT;
        const int a_stride = (a_across ? size.m : size.k) + kPad;
        const int b_stride = (b_down ? size.k : size.n) + kPad;
        const int c_stride = size.n + kPad;
        const auto a = normals(static_cast<size_t>((a_across ? size.k : size.m) * a_stride), 6);
        const auto b = normals(static_cast<size_t>((b_down ? size.n : size.k) * b_stride), 7);
        std::vector<float> c(static_cast<size_t>(size.m * c_stride), 1.0F);
        level_->gemm(form, size, {a.data(), a_stride}, {b.data(), b_stride},
                     {c.data(), c_stride, accumulate});
        for (int m = 0; m < size.m; ++m)
          for (int n = 0; n < c_stride; ++n) {
            const float got = c[static_cast<size_t>(m * c_stride + n)];
            if (n >= size.n) {
              ASSERT_EQ(got, 1.0F) << "wrote beyond column " << size.n;
              continue;
            }
            double sum = accumulate ? 1.0 : 0.0, absolute = sum;
            for (int k = 0; k < size.k; ++k) {
              const double left =
                  double{a[static_cast<size_t>(a_across ? k * a_stride + m : m * a_stride + k)]};
              const double right =
                  double{b[static_cast<size_t>(b_down ? n * b_stride + k : k * b_stride + n)]};
              sum += left * right;
              absolute += std::abs(left * right);
            }
            ASSERT_LE(std::abs(double{got} - sum), sum_tolerance(size.k + 1) * absolute)
                << level_->name << " form " << static_cast<int>(form) << " at " << m << ", " << n;
          }
      }
}

TEST_P(LinearLevel, GemmBlocksAndEmptySizesKeepTheBits) {
  constexpr int kM = 31, kN = 90, kK = 270;
  const auto a = normals(kM * kK, 8), b = normals(kN * kK, 9);
  std::vector<float> whole(kM * kN), cut(kM * kN, 7.0F);
  level_->gemm(GemmForm::kNT, {kM, kN, kK}, {a.data(), kK}, {b.data(), kK},
               {whole.data(), kN, false});
  constexpr int kRowCut = 10, kColumnCut = 7;
  for (int m = 0; m < kM; m += kRowCut)
    for (int n = 0; n < kN; n += kColumnCut)
      level_->gemm(GemmForm::kNT, {std::min(kRowCut, kM - m), std::min(kColumnCut, kN - n), kK},
                   {a.data() + m * kK, kK}, {b.data() + n * kK, kK},
                   {cut.data() + m * kN + n, kN, false});
  EXPECT_TRUE(same_bits(cut, whole));
  level_->gemm(GemmForm::kNT, {kM, kN, 0}, {a.data(), kK}, {b.data(), kK}, {cut.data(), kN, true});
  EXPECT_TRUE(same_bits(cut, whole));
  level_->gemm(GemmForm::kNN, {0, kN, kK}, {}, {b.data(), kN}, {});
  level_->gemm(GemmForm::kNN, {kM, kN, 0}, {a.data(), kK}, {b.data(), kN}, {cut.data(), kN, false});
  EXPECT_TRUE(same_bits(cut, std::vector<float>(kM * kN, 0.0F)));
}

TEST_P(LinearLevel, AnEmptySumIsZero) {
  constexpr int kOut = 7, kRows = 3;
  for (const DType dtype : kTypes) {
    const TestWeight weight(dtype, {kOut, 0}, 15);
    const std::vector<float> x(1), zeros(kOut * kRows, 0.0F);
    EXPECT_TRUE(same_bits(dot(weight, x, 0, kRows, kOut), zeros));
    EXPECT_TRUE(same_bits(columns(weight, x, 0, kRows, kOut), zeros));
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, LinearLevel, testing::Range(0, kMaxLevels));

TEST(LinearThreads, NeitherThreadsNorNeighboursChangeABit) {
  constexpr Shape kMany[] = {{300, 257}, {3, 257}, {70, 257}};
  constexpr int kRows = 130;
  const auto x = normals(kRows * 257, 10);
  std::vector<TestWeight> weights;
  for (const Shape& shape : kMany) weights.emplace_back(DType::kBF16, shape, 11);
  const auto run = [&](int threads, ops::Role role, std::span<const size_t> which) {
    set_num_threads(threads);
    Arena scratch;
    std::vector<std::vector<float>> y;
    std::vector<LinearJob> jobs;
    for (const size_t index : which) {
      const int out = weights[index].view.out_features;
      y.emplace_back(static_cast<size_t>(kRows * out), kUntouched);
      jobs.push_back({weights[index].view, x.data(), 257, y.back().data(), out});
    }
    linear_run(jobs, kRows, role, scratch);
    set_num_threads(0);
    return y;
  };
  const size_t all[] = {0, 1, 2};
  for (const ops::Role role : {ops::Role::kDecode, ops::Role::kPrefill}) {
    const auto one = run(1, role, all);
    for (const int threads : {2, 3, 7}) {
      const auto several = run(threads, role, all);
      for (const size_t index : all) EXPECT_TRUE(same_bits(several[index], one[index])) << threads;
    }
    for (const size_t index : all)
      EXPECT_TRUE(same_bits(run(2, role, std::span(&index, 1))[0], one[index]));
    expect_product(one[0], x, weights[0], kRows);
  }
}

TEST(ExpertsFast, LongLaunchesRunInBlocksWithTheSameBits) {
  constexpr int kHidden = 8192, kWidth = 3, kExperts = 4, kTopK = 3, kRows = 530;
  constexpr int kTail = 5;  // the launch exceeds the 64 MiB of expert outputs held at once
  std::vector<TestWeight> owners;
  std::vector<ops::ExpertWeight> experts;
  for (uint32_t seed = 0; seed <= kExperts; ++seed)
    for (const Shape shape : {Shape{kWidth, kHidden}, {kWidth, kHidden}, {kHidden, kWidth}})
      owners.emplace_back(DType::kBF16, shape, seed * 3 + static_cast<uint32_t>(owners.size()));
  for (size_t first = 0; first < owners.size(); first += 3)
    experts.push_back({owners[first].view, owners[first + 1].view, owners[first + 2].view});
  const auto x = normals(size_t{kRows} * kHidden, 12), weights = normals(kRows * kTopK, 13),
             shared = normals(kRows, 14);
  std::vector<int32_t> ids;
  for (int row = 0; row < kRows; ++row)
    for (int slot = 0; slot < kTopK; ++slot) ids.push_back((row * 7 + slot) % kExperts);
  const auto run = [&](int first, int rows) {
    Arena scratch;
    std::vector<float> out(static_cast<size_t>(rows) * kHidden, kUntouched);
    fast_experts({.x = x.data() + first * kHidden,
                  .ids = ids.data() + first * kTopK,
                  .weights = weights.data() + first * kTopK,
                  .shared_logit = shared.data() + first,
                  .experts = std::span(experts).first(kExperts),
                  .shared = experts.back(),
                  .out = out.data(),
                  .rows = rows,
                  .top_k = kTopK,
                  .role = ops::Role::kPrefill},
                 scratch);
    return out;
  };
  const auto whole = run(0, kRows), tail = run(kRows - kTail, kTail);
  EXPECT_TRUE(same_bits(tail, std::span(whole).last(tail.size())));
}

}  // namespace
}  // namespace tessera::cpu
