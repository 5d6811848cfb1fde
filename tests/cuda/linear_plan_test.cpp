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

TEST(LinearPlanTest, EveryWeightRowHasOneBlock) {
  for (const DType type : {DType::kBF16, DType::kF8E4M3})
    for (const int out : {1, 3, 48, 513, 2560, 13952, 16480, 248320})
      for (const int rows : {1, 6, 8, 9, 16, 17, 32, 33, 64, 65, 256, 8192}) {
        SCOPED_TRACE(testing::Message() << out << " outputs, " << rows << " rows");
        const RoundsPlan plan = plan_rounds(out, rows, type, kH200);
        EXPECT_GE(plan.blocks * plan.rows_per_block, out);
        EXPECT_LT((plan.blocks - 1) * plan.rows_per_block, out);
        EXPECT_GE(plan.passes * plan.pass_rows, rows);
        EXPECT_LT((plan.passes - 1) * plan.pass_rows, rows);
        const int per_sm = plan.pass_rows == RoundsF8UpTo8::kPassRows ? RoundsF8UpTo8::kBlocksPerSm
                                                                      : RoundsBf16::kBlocksPerSm;
        EXPECT_LE(plan.passes * plan.blocks, std::max(plan.passes, kH200.num_sms * per_sm));
      }
}

TEST(LinearPlanTest, EveryTileHasOneGroup) {
  for (const int in : {64, 320, 2560, 6144, 10240})
    for (const int tiles : {1, 3, 160, 872, 1030, 15520})
      for (const int rows : {1, 8, 9, 16, 17, 32, 33, 256}) {
        SCOPED_TRACE(testing::Message() << tiles << " tiles of " << in << ", " << rows << " rows");
        ASSERT_EQ(std::string(supports_held(DType::kBF16, in, kH200)), "");
        const HeldPlan plan = plan_held(tiles, rows, in, kH200);
        EXPECT_GE(plan.groups * plan.tiles_per_group, tiles);
        EXPECT_LT((plan.groups - 1) * plan.tiles_per_group, tiles);
        EXPECT_GE(plan.passes * plan.pass_rows, rows);
        EXPECT_LT((plan.passes - 1) * plan.pass_rows, rows);
        if (plan.split == 1)
          EXPECT_LE(plan.passes * plan.groups, std::max(plan.passes, kH200.num_sms));
        else
          EXPECT_LE(plan.tiles_per_group, HeldGeometry::kSplitTiles);
      }
}

/// The order of summation must not depend on anything but the row.
TEST(LinearPlanTest, LongRowsAreSplitWhateverTheRows) {
  EXPECT_EQ(held_split(2560), 1);
  EXPECT_EQ(held_split(6144), 4);
  EXPECT_NE(std::string(supports_held(DType::kBF16, 12288, kH200)), "");
  EXPECT_NE(std::string(supports_held(DType::kF8E4M3, 2560, kH200)), "");
  GpuSpec ampere = kH200;
  ampere.compute_major = 8;
  EXPECT_EQ(std::string(supports_held(DType::kBF16, 2560, ampere)), "");
  EXPECT_NE(std::string(supports_held(DType::kBF16, 6144, ampere)).find("sm_90"),
            std::string::npos);
}

/// A warp has registers for the activations of so many slices.
TEST(LinearPlanTest, RoundsFitIntoRegisters) {
  EXPECT_EQ(rounds_of(2560, DType::kF8E4M3), 1);
  EXPECT_EQ(rounds_of(6144, DType::kF8E4M3), 2);
  EXPECT_EQ(rounds_of(12288, DType::kBF16), 5);
  for (const DType type : {DType::kBF16, DType::kF8E4M3})
    for (const int in : {128, 640, 2560, 2688, 6144, 10240, 12288, 51200}) {
      const bool is_f8 = type == DType::kF8E4M3;
      const int slices = in * (is_f8 ? 1 : 2) / StreamGeometry::kSliceBytes;
      const int held = is_f8 ? StreamGeometry::kF8Slices : StreamGeometry::kBf16Slices;
      const int rounds = rounds_of(in, type);
      for (int round = 0; round < rounds; ++round)
        EXPECT_LE(slices * (round + 1) / rounds - slices * round / rounds,
                  StreamGeometry::kWarps * held)
            << in;
    }
}

/// Two blocks and what the device keeps for each must fit, or nothing of the next kernel starts
/// early.
TEST(LinearPlanTest, TheNextKernelFindsRoom) {
  constexpr size_t kReserved = 1024, kSm = size_t{228} << 10;
  EXPECT_LE(2 * (HeldUpTo8::kSharedBytes + kReserved), kSm);
  EXPECT_LE(2 * (HeldUpTo16::kSharedBytes + kReserved), kSm);
  EXPECT_LE(2 * (RoundsF8UpTo8::kSharedBytes + kReserved), kSm);
}

/// A released output projection: 160 tiles, five for each of 32 clusters.
TEST(LinearPlanTest, OutputProjectionFillsTheDevice) {
  const HeldPlan plan = plan_held(160, 4, 6144, kH200);
  EXPECT_EQ(plan.groups * plan.split, 128);
  EXPECT_EQ(plan.tiles_per_group, 5);
}

TEST(LinearPlanTest, EvenRowsFillTheLastWave) {
  for (const int out : {2560, 13952, 16480, 248320})
    for (const int rows : {1, 16}) {
      const RoundsPlan plan = plan_rounds(out, rows, DType::kF8E4M3, kH200);
      const int blocks = kH200.num_sms * (rows <= RoundsF8UpTo8::kPassRows ? 2 : 1);
      EXPECT_LT(plan.rows_per_block, 1.04 * out / blocks) << out;
    }
}

TEST(LinearPlanTest, EmptyLaunchesHaveNoBlocks) {
  EXPECT_EQ(plan_rounds(0, 4, DType::kF8E4M3, kH200).blocks, 0);
  EXPECT_EQ(plan_rounds(16, 0, DType::kF8E4M3, kH200).blocks, 0);
  EXPECT_EQ(plan_held(0, 4, 2560, kH200).groups, 0);
  EXPECT_EQ(plan_held(16, 0, 2560, kH200).groups, 0);
}

TEST(LinearPlanTest, SmallestInstanceThatHoldsTheRows) {
  for (const auto& [rows, of_pass] :
       {std::pair{1, 8}, {8, 8}, {9, 16}, {16, 16}, {17, 32}, {33, 32}, {256, 32}})
    EXPECT_EQ(plan_held(160, rows, 2560, kH200).pass_rows, of_pass) << rows;
  for (const auto& [rows, of_pass] : {std::pair{1, 8}, {8, 8}, {9, 16}, {17, 16}, {256, 16}})
    EXPECT_EQ(plan_rounds(2560, rows, DType::kF8E4M3, kH200).pass_rows, of_pass) << rows;
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
