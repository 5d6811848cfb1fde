// SPDX-License-Identifier: Apache-2.0
// Residual update and next norm on every block width: against the definition, and nothing touched
// before the inputs are there.
#include <vector>

#include "cuda/combine/combine_plan.h"
#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"

namespace tessera::test {
namespace {

constexpr double kRounding = 0x1p-8;

class CombineCudaTest : public CudaTest {
 protected:
  void prepare(int rows, int branches, int hidden) {
    world().clear();
    const auto out = static_cast<size_t>(rows) * static_cast<size_t>(hidden);
    count_ = out * static_cast<size_t>(branches);
    args_ = {.wide = world().bf16(count_, 2),
             .out = world().bf16(out),
             .inject = world().floats(static_cast<size_t>(rows) * static_cast<size_t>(branches)),
             .next_norm =
                 world().floats(static_cast<size_t>(branches) * static_cast<size_t>(hidden), 0.2),
             .normed = world().bytes(count_ * sizeof(uint16_t)),
             .eps = kEps,
             .rows = rows,
             .branches = branches,
             .hidden = hidden};
  }

  void expect_definition(const std::vector<float>& before, const std::vector<float>& out) {
    const auto hidden = static_cast<size_t>(args_.hidden);
    const auto branches = static_cast<size_t>(args_.branches);
    const std::vector<float> inject =
        read_floats(args_.inject, static_cast<size_t>(args_.rows) * branches);
    const std::vector<float> norm = read_floats(args_.next_norm, branches * hidden);
    const std::vector<float> wide = read_bf16(args_.wide, count_);
    const std::vector<float> normed = read_bf16(args_.normed, count_);
    for (size_t branch_row = 0; branch_row < inject.size(); ++branch_row) {
      const double weight = 2 * sigmoid(double{inject[branch_row]});
      std::vector<float> want(hidden);
      for (size_t col = 0; col < hidden; ++col)
        want[col] = static_cast<float>(double{before[branch_row * hidden + col]} +
                                       weight * double{out[branch_row / branches * hidden + col]});
      const auto stored = std::span(wide).subspan(branch_row * hidden, hidden);
      ASSERT_TRUE(close(stored, want, kRounding + sum_tolerance(2)));
      const auto next = rms_by_definition(
          to_double(stored), std::span(norm).subspan(branch_row % branches * hidden, hidden),
          double{kEps});
      ASSERT_TRUE(close(std::span(normed).subspan(branch_row * hidden, hidden), to_float(next),
                        kRounding + sum_tolerance(static_cast<double>(hidden))));
    }
  }

  size_t count_ = 0;  // elements of the wide rows
  ops::CombineArgs args_;
};

TEST_F(CombineCudaTest, MatchesTheDefinitionOnEveryTile) {
  std::vector<int> widths = {33, 2562, cuda::kCombineTiles.back().covers() + 8};
  for (const cuda::CombineTile& tile : cuda::kCombineTiles)
    for (const int hidden : {tile.covers(), tile.covers() - 8}) widths.push_back(hidden);
  for (const int hidden : widths)
    for (const int rows : {1, 5}) {
      SCOPED_TRACE(testing::Message() << "hidden " << hidden << " rows " << rows);
      prepare(rows, 4, hidden);
      const std::vector<float> before = read_bf16(args_.wide, count_);
      const std::vector<float> out =
          read_bf16(args_.out, static_cast<size_t>(rows) * static_cast<size_t>(hidden));
      cuda::launch_combine(context(), args_);
      ASSERT_NO_FATAL_FAILURE(expect_definition(before, out));
    }
}

TEST_F(CombineCudaTest, UpdatesAloneAsWithTheNorm) {
  for (const int hidden : {2560, 33}) {
    prepare(3, 4, hidden);
    const std::vector<float> before = read_bf16(args_.wide, count_);
    cuda::launch_combine(context(), args_);
    const std::vector<float> want = read_bf16(args_.wide, count_);
    args_.wide = upload_bf16(before);
    args_.next_norm = nullptr;
    args_.normed = nullptr;
    cuda::launch_combine(context(), args_);
    ASSERT_TRUE(same_bits(read_bf16(args_.wide, count_), want));
  }
}

TEST_F(CombineCudaTest, WaitsForItsInputs) {
  for (const int hidden : {2560, 33}) {
    prepare(9, 4, hidden);
    const std::vector<float> before = read_bf16(args_.wide, count_);
    cuda::launch_combine(context(), args_);
    const std::vector<float> wide = read_bf16(args_.wide, count_);
    const std::vector<float> normed = read_bf16(args_.normed, count_);
    args_.wide = upload_bf16(before);
    DelayedProducer producer(context());
    producer.late(args_.wide, count_ * sizeof(uint16_t));
    producer.late(const_cast<void*>(args_.out), count_ / 4 * sizeof(uint16_t));
    producer.late(const_cast<float*>(args_.inject), size_t{9} * 4 * sizeof(float));
    producer.untouched(args_.normed, count_ * sizeof(uint16_t));
    EXPECT_TRUE(producer.run([&] { cuda::launch_combine(context(), args_); }));
    ASSERT_TRUE(same_bits(read_bf16(args_.wide, count_), wide));
    ASSERT_TRUE(same_bits(read_bf16(args_.normed, count_), normed));
  }
}

}  // namespace
}  // namespace tessera::test
