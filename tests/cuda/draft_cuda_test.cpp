// SPDX-License-Identifier: Apache-2.0
// The draft layer's input on every block shape and table type: against the definition, the same
// bits in any launch, and nothing touched before the inputs are there.
#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"
#include "cuda/draft/draft_plan.h"

namespace tessera::test {
namespace {

constexpr double kRounding = 0x1p-8;
constexpr int kVocab = 150;  // more than one row of scales
constexpr int kSourceRows = 9;
constexpr size_t kBf16 = sizeof(uint16_t);

struct Shape {
  int branches;
  int hidden;
};

class DraftCudaTest : public CudaTest {
 protected:
  void prepare(const Shape& shape, DType dtype, int rows) {
    world().clear();
    hidden_ = static_cast<size_t>(shape.hidden);
    wide_ = hidden_ * static_cast<size_t>(shape.branches);
    injects_ = static_cast<size_t>(rows) * static_cast<size_t>(shape.branches);
    ids_.clear(), sources_.clear();
    for (int row = 0; row < rows; ++row) {
      ids_.push_back(random_.below(kVocab));
      sources_.push_back(random_.below(kSourceRows));
    }
    const double unit = std::sqrt(static_cast<double>(hidden_));  // elements of unit size
    args_ = {.ids = world().copy(ids_),
             .table = world().weight(dtype, kVocab, shape.hidden, unit),
             .wide = world().bf16(kSourceRows * wide_, 3),
             .wide_rows = world().copy(sources_),
             .norm_embedding = world().floats(hidden_, 0.3),
             .norm_hidden = world().floats(wide_, 0.3),
             .eps = kEps,
             .rows = rows,
             .branches = shape.branches,
             .embedded = world().bytes(ids_.size() * hidden_ * kBf16),
             .normed = world().bytes(ids_.size() * wide_ * kBf16),
             .inject = world().floats(injects_)};
  }
  std::vector<float> embedded() { return read_bf16(args_.embedded, ids_.size() * hidden_); }
  std::vector<float> normed() { return read_bf16(args_.normed, ids_.size() * wide_); }

  void expect_rows(std::span<const float> got, std::span<const float> source, size_t width,
                   const std::vector<int32_t>& rows, const float* weights) {
    const std::vector<float> norm = read_floats(weights, width);
    for (size_t row = 0; row < rows.size(); ++row) {
      const auto want = rms_by_definition(
          to_double(source.subspan(static_cast<size_t>(rows[row]) * width, width)), norm,
          double{kEps});
      ASSERT_TRUE(close(got.subspan(row * width, width), to_float(want),
                        kRounding + sum_tolerance(static_cast<double>(width))))
          << "row " << row;
    }
  }
  void expect_definition() {
    expect_rows(embedded(), read_weight(args_.table), hidden_, ids_, args_.norm_embedding);
    expect_rows(normed(), read_bf16(args_.wide, kSourceRows * wide_), wide_, sources_,
                args_.norm_hidden);
    for (const float logit : read_floats(args_.inject, injects_)) ASSERT_EQ(logit, 0.0F);
  }

  ops::DraftInputArgs args_;
  std::vector<int32_t> ids_{}, sources_{};
  size_t hidden_ = 0, wide_ = 0, injects_ = 0;
  Random random_{97};
};

/// The edges of every tile, odd widths, one wider than all tiles, more branches than threads.
std::vector<Shape> shapes() {
  std::vector<Shape> shapes = {{4, 2560}, {1, 33}, {3, 33}, {4, 2562}, {300, 3}, {1, 8}};
  for (const cuda::DraftTile& tile : cuda::kDraftTiles)
    for (const int wide : {tile.covers(), tile.covers() - 16, tile.covers() + 16})
      shapes.push_back({2, wide / 2});
  return shapes;
}

TEST_F(DraftCudaTest, MatchesTheDefinitionOnEveryTile) {
  for (const Shape& shape : shapes())
    for (const DType dtype : kWeightTypes)
      for (const int rows : {1, 5}) {
        SCOPED_TRACE(testing::Message() << shape.branches << " branches of " << shape.hidden << ", "
                                        << dtype_name(dtype) << ", " << rows << " rows");
        prepare(shape, dtype, rows);
        cuda::launch_draft_input(context(), args_);
        ASSERT_NO_FATAL_FAILURE(expect_definition());
      }
}

/// Rows of a whole prompt, each with the bits of a launch of its own.
TEST_F(DraftCudaTest, ARowHasTheSameBitsInEveryLaunch) {
  constexpr int kRows = 1000;
  for (const Shape& shape : {Shape{4, 2560}, Shape{4, 64}, Shape{3, 33}}) {
    prepare(shape, DType::kBF16, kRows);
    cuda::launch_draft_input(context(), args_);
    ASSERT_NO_FATAL_FAILURE(expect_definition());
    const std::vector<float> tokens = embedded(), branches = normed();
    const ops::DraftInputArgs all = args_;
    for (const size_t row : {size_t{0}, size_t{1}, size_t{500}, size_t{kRows - 1}}) {
      args_.rows = 1;
      args_.ids = all.ids + row;
      args_.wide_rows = all.wide_rows + row;
      cuda::launch_draft_input(context(), args_);
      EXPECT_TRUE(same_bits(read_bf16(args_.embedded, hidden_),
                            std::span(tokens).subspan(row * hidden_, hidden_)));
      EXPECT_TRUE(same_bits(read_bf16(args_.normed, wide_),
                            std::span(branches).subspan(row * wide_, wide_)));
    }
    args_ = all;
  }
}

TEST_F(DraftCudaTest, NothingToDo) {
  prepare({4, 64}, DType::kBF16, 1);
  args_.rows = 0;
  cuda::launch_draft_input(context(), args_);
  synchronize();
}

TEST_F(DraftCudaTest, WaitsForItsInputs) {
  for (const Shape& shape : {Shape{4, 2560}, Shape{3, 33}}) {
    prepare(shape, DType::kBF16, 9);
    cuda::launch_draft_input(context(), args_);
    const std::vector<float> tokens = embedded(), branches = normed();
    DelayedProducer producer(context());
    producer.late(const_cast<void*>(args_.wide), kSourceRows * wide_ * kBf16);
    producer.late(const_cast<int32_t*>(args_.ids), ids_.size() * sizeof(int32_t));
    producer.late(const_cast<int32_t*>(args_.wide_rows), ids_.size() * sizeof(int32_t));
    producer.untouched(args_.embedded, ids_.size() * hidden_ * kBf16);
    producer.untouched(args_.normed, ids_.size() * wide_ * kBf16);
    producer.untouched(args_.inject, injects_ * sizeof(float));
    EXPECT_TRUE(producer.run([&] { cuda::launch_draft_input(context(), args_); }));
    ASSERT_TRUE(same_bits(embedded(), tokens));
    ASSERT_TRUE(same_bits(normed(), branches));
    for (const float logit : read_floats(args_.inject, injects_)) ASSERT_EQ(logit, 0.0F);
  }
}

}  // namespace
}  // namespace tessera::test
