// SPDX-License-Identifier: Apache-2.0
// Cuts of the streaming product: every weight row has one block, the last wave is full, and what no
// kernel can read is refused with a reason.
#include "cuda/linear/linear_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/embed/embed_plan.h"

namespace tessera::cuda {
namespace {

/// An address that is aligned and never read.
const void* aligned(uintptr_t address = 4096) { return reinterpret_cast<const void*>(address); }

ops::LinearWeight weight_of(DType dtype, int out, int in) {
  return {
      .data = aligned(), .dtype = dtype, .scale = nullptr, .out_features = out, .in_features = in};
}

std::string refused(const ops::LinearWeight& weight, const GpuSpec& gpu = kH200) {
  return std::string(supports_stream(weight, aligned(), gpu));
}

TEST(LinearPlanTest, ReleasedShapesStream) {
  for (const int in : {2560, 6144, 10240, 320, 640})
    EXPECT_EQ(refused(weight_of(DType::kBF16, 2560, in)), "") << in;
  for (const int in : {2560, 6144, 640})
    EXPECT_EQ(refused(weight_of(DType::kF8E4M3, 2560, in)), "") << in;
  // Of the micro model.
  for (const int in : {128, 384, 3072, 64})
    EXPECT_EQ(refused(weight_of(DType::kBF16, 512, in)), "") << in;
}

TEST(LinearPlanTest, RefusalsHaveReasons) {
  EXPECT_NE(refused(weight_of(DType::kF32, 8, 128)).find("E4M3"), std::string::npos);
  EXPECT_NE(refused(weight_of(DType::kBF16, 8, 96)).find("128 bytes"), std::string::npos);
  EXPECT_NE(refused(weight_of(DType::kF8E4M3, 8, 320)).find("128 bytes"), std::string::npos);
  ops::LinearWeight shifted = weight_of(DType::kBF16, 8, 128);
  shifted.data = aligned(4098);
  EXPECT_NE(refused(shifted).find("aligned"), std::string::npos);
  EXPECT_NE(std::string(supports_stream(weight_of(DType::kBF16, 8, 128), aligned(4098), kH200)),
            "");
  GpuSpec old = kH200;
  old.compute_major = 7;
  EXPECT_NE(refused(weight_of(DType::kBF16, 8, 128), old).find("sm_80"), std::string::npos);
  GpuSpec small = kH200;
  small.shared_bytes_per_block = size_t{99} << 10;
  EXPECT_NE(refused(weight_of(DType::kBF16, 8, 128), small).find("shared"), std::string::npos);
}

/// Clusters of 1, 2 and 4 blocks that an H200 may run at once: not every GPC has a whole number.
int clusters_of(int blocks) { return blocks == 1 ? 132 : blocks == 2 ? 66 : 31; }

HeldPlan plan_of(int total_rows, int rows, DType type, const GpuSpec& gpu = kH200) {
  const HeldPlan chosen = choose_held(rows, type, gpu);
  return plan_held(chosen, total_rows, clusters_of(chosen.cluster));
}

TEST(LinearPlanTest, EveryWeightRowHasOneTeam) {
  for (const DType type : {DType::kBF16, DType::kF8E4M3})
    for (const int out : {1, 3, 48, 513, 2560, 13952, 16480, 248320})
      for (const int rows : {1, 6, 8, 9, 16, 17, 32, 33, 64, 65, 256, 8192}) {
        SCOPED_TRACE(testing::Message() << out << " outputs, " << rows << " rows");
        const HeldPlan plan = plan_of(out, rows, type);
        EXPECT_GE(plan.teams * plan.rows_per_team, out);
        EXPECT_LT((plan.teams - 1) * plan.rows_per_team, out);
        const HeldInstance instance = type == DType::kF8E4M3
                                          ? kHeldF8[static_cast<size_t>(plan.config)]
                                          : kHeldBf16[static_cast<size_t>(plan.config)];
        EXPECT_GE(plan.passes * instance.pass_rows, rows);
        EXPECT_LT((plan.passes - 1) * instance.pass_rows, rows);
        EXPECT_LE(plan.passes * plan.teams,
                  std::max(plan.passes, clusters_of(plan.cluster) * plan.blocks_per_sm));
      }
}

/// The order of summation must not depend on anything but the row.
TEST(LinearPlanTest, LongRowsAreSplitWhateverTheRows) {
  EXPECT_EQ(held_splits(64, DType::kBF16), 1);
  EXPECT_EQ(held_splits(2560, DType::kBF16), 1);
  EXPECT_EQ(held_splits(6144, DType::kBF16), 3);
  EXPECT_EQ(held_splits(2560, DType::kF8E4M3), 1);
  EXPECT_EQ(held_splits(6144, DType::kF8E4M3), 2);
  for (const int in : {64, 320, 2560, 2624, 6144, 10240, 12288, 51200}) {
    const int slices = in * 2 / StreamGeometry::kSliceBytes;
    const int splits = held_splits(in, DType::kBF16);
    for (int split = 0; split < splits; ++split)
      EXPECT_LE(slices * (split + 1) / splits - slices * split / splits,
                HeldGeometry::kChains * HeldGeometry::kBf16Slices)
          << in;
  }
}

/// Two blocks and what the device keeps for each must fit, or nothing of the next kernel starts
/// early.
TEST(LinearPlanTest, TheNextKernelFindsRoom) {
  constexpr size_t kReserved = 1024, kSm = size_t{228} << 10;
  EXPECT_LE(2 * (HeldUpTo8::kLocalBytes + kReserved), kSm);
  EXPECT_LE(2 * (HeldUpTo16::kLocalBytes + kReserved), kSm);
  EXPECT_LE(2 * (HeldF8UpTo8::kLocalBytes + kReserved), kSm);
}

TEST(LinearPlanTest, MatricesFillTheLastWave) {
  for (const int out : {2560, 13952, 16480, 248320})
    for (const int rows : {1, 16, 64}) {
      const HeldPlan plan = plan_of(out, rows, DType::kBF16);
      const double mean = double{1} * out / clusters_of(plan.cluster);
      EXPECT_LT(plan.rows_per_team, 1.04 * mean) << out;
    }
}

TEST(LinearPlanTest, EmptyLaunchesHaveNoTeams) {
  EXPECT_EQ(plan_of(0, 4, DType::kBF16).teams, 0);
  EXPECT_EQ(plan_of(16, 0, DType::kBF16).teams, 0);
}

TEST(LinearPlanTest, SmallestInstanceThatHoldsTheRows) {
  for (const auto& [rows, config] :
       {std::pair{1, 0}, {8, 0}, {9, 1}, {16, 1}, {17, 2}, {33, 3}, {64, 3}, {65, 4}, {256, 4}})
    EXPECT_EQ(choose_held(rows, DType::kBF16, kH200).config, config) << rows;
  for (const auto& [rows, config] : {std::pair{1, 0}, {9, 1}, {17, 2}, {32, 2}, {33, 3}, {256, 3}})
    EXPECT_EQ(choose_held(rows, DType::kF8E4M3, kH200).config, config) << rows;
}

TEST(LinearPlanTest, NoClustersBeforeHopper) {
  GpuSpec ampere = kH200;
  ampere.compute_major = 8;
  for (const int rows : {1, 32, 256})
    EXPECT_EQ(choose_held(rows, DType::kBF16, ampere).cluster, 1) << rows;
}

TEST(LinearPlanTest, LibraryTakesWholeVectorsOnly) {
  const auto refusal = [](DType dtype, int out, int in) {
    return std::string(supports_library(weight_of(dtype, out, in), aligned(), aligned()));
  };
  EXPECT_EQ(refusal(DType::kBF16, 48, 2560), "");
  EXPECT_EQ(refusal(DType::kF8E4M3, 10240, 2560), "");
  EXPECT_NE(refusal(DType::kBF16, 1, 2560), "");
  EXPECT_NE(refusal(DType::kBF16, 48, 33), "");
  EXPECT_NE(refusal(DType::kF32, 48, 64), "");
  EXPECT_NE(
      std::string(supports_library(weight_of(DType::kBF16, 48, 64), aligned(4104), aligned())), "");
}

TEST(EmbedPlanTest, VectorsNeedWholeAlignedRows) {
  const ops::EmbedArgs args{.ids = nullptr,
                            .table = weight_of(DType::kBF16, 100, 2560),
                            .wide = reinterpret_cast<void*>(uintptr_t{4096}),
                            .rows = 1,
                            .branches = 4};
  EXPECT_EQ(std::string(supports_embed_vectors(args)), "");
  ops::EmbedArgs other = args;
  other.table.in_features = 33;
  EXPECT_NE(std::string(supports_embed_vectors(other)), "");
  other = args;
  other.table.dtype = DType::kF8E4M3;
  EXPECT_NE(std::string(supports_embed_vectors(other)), "");
  other = args;
  other.wide = reinterpret_cast<void*>(uintptr_t{4104});
  EXPECT_NE(std::string(supports_embed_vectors(other)), "");
}

}  // namespace
}  // namespace tessera::cuda
