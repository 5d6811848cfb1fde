// SPDX-License-Identifier: Apache-2.0
// Products at the released sizes: against the definition on a sample of outputs, equal bits of a
// row in every launch, equal bits of two runs, and nothing touched before the inputs are there.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"
#include "cuda/linear/gemm.h"
#include "cuda/linear/linear_plan.h"

namespace tessera::test {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr double kBf16Rounding = 0x1p-8;  // half a unit in the last of 8 places

/// A weight on the device, its values on the host and the outputs of its product.
struct Part {
  ops::LinearWeight weight;
  std::vector<float> values;
  ops::Output output;

  size_t element_bytes() const { return output == ops::Output::kFloat ? 4 : 2; }
  size_t row_bytes() const { return static_cast<size_t>(weight.out_features) * element_bytes(); }
};

struct PartSpec {
  int out;
  DType dtype = DType::kBF16;
  ops::Output output = ops::Output::kActivation;
};

constexpr auto kLogits = ops::Output::kFloat;
/// Input projections of a GDN layer, of a QSA layer with mixed weight types, and a head of many
/// tiles per block.
/// Reduced: fewer outputs, but still more than one tile per block where there were many.
const std::vector<PartSpec> kGdnParts = {{sized(10240, 272)},
                                         {sized(6144, 144)},
                                         {48, DType::kBF16, kLogits},
                                         {48, DType::kBF16, kLogits}};
const std::vector<PartSpec> kMixedParts = {{sized(12288, 400), DType::kF8E4M3},
                                           {sized(512, 128), DType::kF8E4M3},
                                           {sized(512, 48)},
                                           {sized(640, 80)},
                                           {1, DType::kBF16, kLogits}};
const std::vector<PartSpec> kHeadPart = {{sized(40009, 2249), DType::kBF16, kLogits}};
const std::vector<PartSpec> kHeadF8Part = {{sized(40009, 2249), DType::kF8E4M3, kLogits}};
const std::vector<PartSpec> kOutPart = {{sized(2560, 528)}};
/// Rows of several rounds; of several batches of tiles per block; too long for a cluster.
const std::vector<PartSpec> kOutF8Part = {{sized(4500, 4300), DType::kF8E4M3}};
const std::vector<PartSpec> kWidePart = {{sized(17500, 4300)}};
const std::vector<PartSpec> kLongPart = {{sized(1500, 300)}};

/// Indices below `count`: the first, the last and some between.
std::vector<size_t> sample_of(size_t count) {
  constexpr size_t kSamples = 61;
  std::vector<size_t> sample;
  for (size_t index = 0; index < count; index += std::max<size_t>(1, count / kSamples))
    sample.push_back(index);
  if (sample.back() != count - 1) sample.push_back(count - 1);
  return sample;
}

class LinearCudaTest : public CudaTest {
 protected:
  /// Activations of `rows` rows and the parts that read them.
  void prepare(const std::vector<PartSpec>& specs, int ins, int rows) {
    ins_ = ins;
    x_ = world().bf16(static_cast<size_t>(rows) * static_cast<size_t>(ins));
    x_values_ = read_bf16(x_, static_cast<size_t>(rows) * static_cast<size_t>(ins));
    parts_.clear();
    for (const PartSpec& spec : specs) {
      const ops::LinearWeight weight = world().weight(spec.dtype, spec.out, ins);
      parts_.push_back({weight, read_weight(weight), spec.output});
    }
  }

  const std::byte* x_row(int row) const {
    return static_cast<const std::byte*>(x_) +
           static_cast<size_t>(row) * static_cast<size_t>(ins_) * sizeof(uint16_t);
  }

  /// Outputs of rows first .. first + rows, part after part, as stored.
  std::vector<Bytes> run(int first, int rows, ops::Role role) {
    std::vector<ops::LinearPart> parts;
    for (const Part& part : parts_)
      parts.push_back(
          {part.weight, world().bytes(static_cast<size_t>(rows) * part.row_bytes()), part.output});
    cuda::launch_linear(context(), {.x = x_row(first), .parts = parts, .rows = rows, .role = role});
    std::vector<Bytes> outputs;
    for (size_t index = 0; index < parts.size(); ++index)
      outputs.push_back(read(static_cast<const uint8_t*>(parts[index].y),
                             static_cast<size_t>(rows) * parts_[index].row_bytes()));
    return outputs;
  }

  static float value_at(const Part& part, const Bytes& outputs, size_t index) {
    if (part.output == kLogits) {
      float value = 0;
      std::memcpy(&value, outputs.data() + index * sizeof value, sizeof value);
      return value;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, outputs.data() + index * sizeof bits, sizeof bits);
    return bf16_to_float(bits);
  }

  /// A sample of the outputs of every row.
  void expect_products(const std::vector<Bytes>& outputs, int first, int rows, ops::Role role) {
    const auto ins = static_cast<size_t>(ins_);
    for (size_t index = 0; index < parts_.size(); ++index) {
      const Part& part = parts_[index];
      const auto outs = static_cast<size_t>(part.weight.out_features);
      const bool rounds_weights =
          role == ops::Role::kPrefill && part.weight.dtype == DType::kF8E4M3;
      const double relative =
          sum_tolerance(static_cast<double>(ins)) + (rounds_weights ? kBf16Rounding : 0);
      for (const size_t out : sample_of(outs))
        for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
          const float* x = x_values_.data() + (static_cast<size_t>(first) + row) * ins;
          double sum = 0, absolute = 0;
          for (size_t in = 0; in < ins; ++in) {
            const double term = double{x[in]} * double{part.values[out * ins + in]};
            sum += term;
            absolute += std::abs(term);
          }
          const double rounding = part.output == kLogits ? 0 : kBf16Rounding * std::abs(sum);
          const double got = double{value_at(part, outputs[index], row * outs + out)};
          ASSERT_LE(std::abs(got - sum), relative * absolute + rounding)
              << "part " << index << " row " << row << " output " << out;
        }
    }
  }

  /// Row `row` of `all` has the bits of row `of` of `some`.
  void expect_same_row(const std::vector<Bytes>& all, int row, const std::vector<Bytes>& some,
                       int of) {
    for (size_t index = 0; index < parts_.size(); ++index) {
      const auto bytes = static_cast<std::ptrdiff_t>(parts_[index].row_bytes());
      ASSERT_TRUE(std::equal(all[index].begin() + row * bytes,
                             all[index].begin() + (row + 1) * bytes,
                             some[index].begin() + of * bytes))
          << "part " << index << " row " << row;
    }
  }

  int ins_ = 0;
  void* x_ = nullptr;
  std::vector<float> x_values_;
  std::vector<Part> parts_;
};

struct Layout {
  const char* name;
  const std::vector<PartSpec>& parts;
  int ins;
};
const Layout kLayouts[] = {{"gdn", kGdnParts, 2560},  {"mixed", kMixedParts, 2560},
                           {"head", kHeadPart, 2560}, {"head f8", kHeadF8Part, 2560},
                           {"out", kOutPart, 6144},   {"out f8", kOutF8Part, 6144},
                           {"wide", kWidePart, 2624}, {"long", kLongPart, 12352}};

TEST_F(LinearCudaTest, DecodeMatchesTheDefinition) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    constexpr int kRows = 140;
    prepare(layout.parts, layout.ins, kRows);
    for (const Part& part : parts_)
      ASSERT_EQ(std::string(cuda::supports_stream(part.weight, x_, context().gpu())), "");
    for (const int rows : sized<std::vector<int>>({1, 3, 8, 9, 17, 50, 70, kRows}, {1, 9, 50})) {
      SCOPED_TRACE(rows);
      const auto outputs = run(0, rows, ops::Role::kDecode);
      ASSERT_NO_FATAL_FAILURE(expect_products(outputs, 0, rows, ops::Role::kDecode));
    }
    world().clear();
  }
}

TEST_F(LinearCudaTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    constexpr int kRows = 256;
    prepare(layout.parts, layout.ins, kRows);
    const auto all = run(0, kRows, ops::Role::kDecode);
    ASSERT_EQ(all, run(0, kRows, ops::Role::kDecode)) << "two runs differ";
    for (const int rows : {1, 2, 3, 4, 5, 6, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129})
      for (int first = 0; first + rows <= kRows; first += 47) {
        const auto some = run(first, rows, ops::Role::kDecode);
        for (int row = 0; row < rows; ++row)
          ASSERT_NO_FATAL_FAILURE(expect_same_row(all, first + row, some, row)) << rows << " rows";
      }
    world().clear();
  }
}

/// Activations off alignment go to the generic kernel.
TEST_F(LinearCudaTest, GenericKernelAgrees) {
  constexpr int kRows = 9, kIns = 2560;
  prepare(kMixedParts, kIns, kRows + 1);
  const std::byte* shifted = x_row(0) + sizeof(uint16_t);
  for (const Part& part : parts_) {
    const auto outs = static_cast<size_t>(part.weight.out_features);
    auto* y = reinterpret_cast<float*>(world().bytes(kRows * outs * sizeof(float)));
    ASSERT_NE(std::string(cuda::supports_stream(part.weight, shifted, context().gpu())), "");
    const ops::LinearPart generic{.weight = part.weight, .y = y, .output = kLogits};
    cuda::gemv_decode(context(), shifted, kRows, {&generic, 1});
    const std::vector<float> values = read_floats(y, kRows * outs);
    void* aligned = world().bytes(kRows * kIns * sizeof(uint16_t));
    world().copy_in(aligned, read(shifted, kRows * kIns * sizeof(uint16_t)).data(),
                    kRows * kIns * sizeof(uint16_t));
    cuda::gemv_decode(context(), aligned, kRows, {&generic, 1});
    EXPECT_TRUE(close(read_floats(y, kRows * outs), values, 1e-5, 1));
  }
}

TEST_F(LinearCudaTest, PromptMatchesTheDefinition) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    constexpr int kRows = 130;
    prepare(layout.parts, layout.ins, kRows);
    for (const int rows : sized<std::vector<int>>({1, 7, 64, kRows}, {7})) {
      SCOPED_TRACE(rows);
      const auto outputs = run(0, rows, ops::Role::kPrefill);
      ASSERT_NO_FATAL_FAILURE(expect_products(outputs, 0, rows, ops::Role::kPrefill));
    }
    world().clear();
  }
}

/// Chunking a prompt in another way must not show: algorithms are pinned.
TEST_F(LinearCudaTest, PromptRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    constexpr int kRows = 1300;
    prepare(layout.parts, layout.ins, kRows);
    const auto all = run(0, kRows, ops::Role::kPrefill);
    ASSERT_EQ(all, run(0, kRows, ops::Role::kPrefill)) << "two runs differ";
    for (const auto& [first, rows] :
         {std::pair{0, 1}, {64, 64}, {640, 200}, {1299, 1}, {3, 1024}}) {
      const auto some = run(first, rows, ops::Role::kPrefill);
      for (int row = 0; row < rows; ++row)
        ASSERT_NO_FATAL_FAILURE(expect_same_row(all, first + row, some, row)) << rows << " rows";
    }
    world().clear();
  }
}

TEST_F(LinearCudaTest, WaitsForItsInputs) {
  for (const ops::Role role : kRoles)
    for (const Layout& layout : kLayouts)
      for (const int rows : {1, 12, 20, 50, 100}) {
        SCOPED_TRACE(testing::Message() << layout.name << role_name(role) << rows);
        prepare(layout.parts, layout.ins, rows);
        const auto want = run(0, rows, role);
        std::vector<ops::LinearPart> parts;
        DelayedProducer producer(context());
        producer.late(x_, static_cast<size_t>(rows * layout.ins) * sizeof(uint16_t));
        for (const Part& part : parts_) {
          const size_t bytes = static_cast<size_t>(rows) * part.row_bytes();
          parts.push_back({part.weight, world().bytes(bytes), part.output});
          producer.untouched(parts.back().y, bytes);
        }
        EXPECT_TRUE(producer.run([&] {
          cuda::launch_linear(context(), {.x = x_, .parts = parts, .rows = rows, .role = role});
        }));
        for (size_t index = 0; index < parts.size(); ++index)
          EXPECT_EQ(read(static_cast<const uint8_t*>(parts[index].y), want[index].size()),
                    want[index]);
        world().clear();
      }
}

TEST_F(LinearCudaTest, EmbedWaitsForItsIds) {
  constexpr int kVocab = 1000, kHidden = 2560, kBranches = 4, kRows = 65;
  constexpr size_t kWide = size_t{kHidden} * kBranches;
  const ops::LinearWeight table = world().weight(DType::kBF16, kVocab, kHidden);
  const std::vector<float> values = read_weight(table);
  std::vector<int32_t> ids(kRows);
  for (size_t row = 0; row < kRows; ++row) ids[row] = static_cast<int32_t>(row * 389 % kVocab);
  int32_t* device_ids = world().copy(ids);
  void* wide = world().bytes(kRows * kWide * sizeof(uint16_t));
  DelayedProducer producer(context());
  producer.late(device_ids, ids.size() * sizeof(int32_t));
  producer.untouched(wide, kRows * kWide * sizeof(uint16_t));
  EXPECT_TRUE(producer.run([&] {
    cuda::launch_embed(
        context(),
        {.ids = device_ids, .table = table, .wide = wide, .rows = kRows, .branches = kBranches});
  }));
  const std::vector<float> got = read_bf16(wide, kRows * kWide);
  for (size_t row = 0; row < kRows; ++row)
    for (size_t col = 0; col < kWide; ++col)
      ASSERT_EQ(got[row * kWide + col],
                values[static_cast<size_t>(ids[row]) * kHidden + col % kHidden])
          << "row " << row << " column " << col;
}

}  // namespace
}  // namespace tessera::test
