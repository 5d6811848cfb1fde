// SPDX-License-Identifier: Apache-2.0
// Lists that go on from earlier ones wait for those and for their sources (what they hold: the op
// suite).
#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"

namespace tessera::test {
namespace {

constexpr int kBlock = 4, kFromStride = 510, kStride = 512;
constexpr size_t kRows = 19;

class QsaExtendCudaTest : public CudaTest {
 protected:
  /// Full lists; row r follows row kRows - 1 - r.
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    std::vector<int32_t> from(kRows * kFromStride);
    for (size_t at = 0; at < from.size(); ++at) from[at] = static_cast<int32_t>(at);
    for (size_t row = 0; row < kRows; ++row) {
      const auto index = static_cast<int>(row);
      sources_.push_back(static_cast<int32_t>(kRows - 1 - row));
      spans_.push_back({.row_begin = index, .num_rows = 1, .position = 40003 + index});
    }
    const ops::RowBatch batch{
        .spans = spans_, .num_rows = static_cast<int>(kRows), .role = ops::Role::kDecode};
    args_ = {
        .block = kBlock,
        .source_rows = world().ops().begin({.batch = batch, .source_rows = sources_}).source_rows,
        .from_blocks = world().copy(from),
        .from_counts = world().copy(std::vector<int32_t>(kRows, kFromStride)),
        .from_stride = kFromStride,
        .batch = batch,
        .blocks = ints(kRows * kStride),
        .counts = ints(kRows),
        .stride = kStride};
  }
  int32_t* ints(size_t count) { return world().copy(std::vector<int32_t>(count, -7)); }

  std::vector<int32_t> sources_{};
  std::vector<ops::RowSpan> spans_{};
  ops::QsaExtendArgs args_;
};

TEST_F(QsaExtendCudaTest, WaitsForItsInputs) {
  cuda::launch_qsa_extend(context(), args_);
  const std::vector<int32_t> counts = read(args_.counts, kRows);
  // What lies behind a list is not written: its poison stays.
  const auto lists = [&] {
    std::vector<std::vector<int32_t>> all;
    for (size_t row = 0; row < kRows; ++row)
      all.push_back(read(args_.blocks + row * kStride, static_cast<size_t>(counts[row])));
    return all;
  };
  const std::vector<std::vector<int32_t>> want = lists();
  for (size_t row = 0; row < kRows; ++row) {
    const int64_t seen = spans_[row].position + 1;
    EXPECT_EQ(counts[row], kFromStride + (seen % kBlock == 0 ? 1 : 0));
    EXPECT_EQ(want[row].front(), sources_[row] * kFromStride);
    if (seen % kBlock == 0) {
      EXPECT_EQ(want[row].back(), seen / kBlock - 1);
    }
  }
  DelayedProducer producer(context());
  const auto late = [&](const int32_t* data, size_t count) {
    producer.late(const_cast<int32_t*>(data), count * sizeof(int32_t));
  };
  late(args_.from_blocks, kRows * kFromStride);
  late(args_.from_counts, kRows);
  late(args_.source_rows, kRows);
  producer.untouched(args_.blocks, kRows * kStride * sizeof(int32_t));
  producer.untouched(args_.counts, kRows * sizeof(int32_t));
  EXPECT_TRUE(producer.run([&] { cuda::launch_qsa_extend(context(), args_); }));
  EXPECT_EQ(read(args_.counts, kRows), counts);
  EXPECT_EQ(lists(), want);
}

TEST_F(QsaExtendCudaTest, NothingToDo) {
  args_.batch = {};
  cuda::launch_qsa_extend(context(), args_);
  synchronize();
}

}  // namespace
}  // namespace tessera::test
