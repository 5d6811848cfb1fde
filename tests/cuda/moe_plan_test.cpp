// SPDX-License-Identifier: Apache-2.0
// Cuts of the mixture of experts: every weight row of every expert is streamed by one block, shares
// are equal in bytes, tiles cover what they should, and refusals have reasons.
#include "cuda/moe/moe_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/moe/moe_weights.h"

namespace tessera::cuda::moe {
namespace {

constexpr MoeShape kReleased{
    .hidden = 2560, .width = 640, .shared_width = 640, .num_experts = 512, .top_k = 10};
constexpr MoeShape kMicro{
    .hidden = 128, .width = 64, .shared_width = 64, .num_experts = 12, .top_k = 10};
constexpr MoeShape kSmall{
    .hidden = 256, .width = 128, .shared_width = 128, .num_experts = 16, .top_k = 4};
constexpr MoeShape kNano{
    .hidden = 64, .width = 32, .shared_width = 32, .num_experts = 16, .top_k = 4};

MoeShape with_types(MoeShape shape, DType routed, DType shared) {
  shape.routed = routed;
  shape.shared = shared;
  return shape;
}

TEST(MoePlanTest, ReleasedAndSmallSizesTakeTheFastKernels) {
  for (const MoeShape& shape : {kReleased, kMicro, kSmall}) {
    EXPECT_EQ(std::string(why_not_streaming(shape, kH200)), "") << shape.hidden;
    EXPECT_EQ(std::string(why_not_grouped(shape, kH200)), "") << shape.hidden;
    EXPECT_EQ(std::string(why_not_fused_router(shape.hidden, shape.routed, shape.shared)), "");
  }
  for (const DType shared : {DType::kBF16, DType::kF8E4M3}) {
    const MoeShape shape = with_types(kReleased, DType::kF8E4M3, shared);
    EXPECT_EQ(std::string(why_not_streaming(shape, kH200)), "");
    EXPECT_EQ(std::string(why_not_grouped(shape, kH200)), "");
  }
}

TEST(MoePlanTest, RefusalsHaveReasons) {
  MoeShape odd = kReleased;
  odd.hidden = 2568;
  EXPECT_NE(why_not_streaming(odd, kH200).find("16"), std::string::npos);
  EXPECT_NE(why_not_streaming(kNano, kH200).find("128"), std::string::npos);
  EXPECT_NE(why_not_grouped(kNano, kH200).find("64"), std::string::npos);
  GpuSpec ampere = kH200;
  ampere.compute_major = 8;
  EXPECT_NE(why_not_grouped(kReleased, ampere).find("sm_90a"), std::string::npos);
  EXPECT_NE(why_not_streaming(kReleased, ampere).find("sm_90"), std::string::npos);
  MoeShape shape = kReleased;
  shape.hidden = 5120;
  shape.width = shape.shared_width = 320;
  EXPECT_NE(why_not_streaming(shape, kH200).find("registers"), std::string::npos);
  shape = kReleased;
  shape.width = shape.shared_width = 2560;
  EXPECT_NE(why_not_streaming(shape, kH200).find("large"), std::string::npos);
  shape = kReleased;
  shape.shared_width = 320;
  EXPECT_NE(why_not_streaming(shape, kH200).find("width"), std::string::npos);
  EXPECT_NE(why_not_grouped(shape, kH200).find("width"), std::string::npos);
  shape = kReleased;
  shape.num_experts = 4096;
  EXPECT_NE(why_not_streaming(shape, kH200).find("many"), std::string::npos);
  EXPECT_NE(why_not_grouped(shape, kH200).find("many"), std::string::npos);
  shape = with_types(kReleased, DType::kF32, DType::kBF16);
  EXPECT_NE(why_not_streaming(shape, kH200).find("BF16"), std::string::npos);
  EXPECT_NE(why_not_grouped(shape, kH200).find("BF16"), std::string::npos);
  shape = with_types(kMicro, DType::kF8E4M3, DType::kBF16);
  EXPECT_NE(why_not_streaming(shape, kH200).find("128"), std::string::npos);
  EXPECT_NE(why_not_grouped(shape, kH200).find("scales"), std::string::npos);
  EXPECT_NE(why_not_fused_router(2560, DType::kF32, DType::kBF16).find("BF16"), std::string::npos);
  EXPECT_NE(why_not_fused_router(2561, DType::kBF16, DType::kBF16).find("size"), std::string::npos);
}

TEST(MoePlanTest, TeamsShareOutTilesAndSlices) {
  for (int slices = 1; slices <= 200; ++slices) {
    const StreamSplit split = split_stream(slices * StreamGeometry::kSliceBytes);
    EXPECT_EQ(split.slices, slices);
    EXPECT_GE(split.set_teams, 1);
    EXPECT_GE(split.per_team, 1);
    EXPECT_LE(split.per_team, slices);
    EXPECT_LE(split.set_teams * split.per_team, StreamGeometry::kSetWarps);
    EXPECT_GE(split.stages * split.per_team, slices);
    EXPECT_LT((split.stages - 1) * split.per_team, slices);
  }
  // Released sizes keep all warps equally busy, and their activations fit into registers.
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3})
    for (const int elements : {2560, 640}) {
      const int row_bytes = elements * static_cast<int>(dtype_bytes(dtype));
      const StreamSplit split = split_stream(row_bytes);
      EXPECT_EQ(split.teams() * split.per_team, StreamGeometry::kWarps) << row_bytes;
      EXPECT_EQ(split.slices % split.per_team, 0) << row_bytes;
      EXPECT_LE(split.stages, held_stages(dtype)) << row_bytes;
    }
}

TEST(MoePlanTest, EveryTileHasOneBlock) {
  for (const int grid : {1, 7, 132, 264})
    for (const int shared : {0, 1, 80, 160, 320, 2560})
      for (const int routed : {0, 1, 4, 43, 800, 6400, 40960})
        for (const int shared_cost : {1, 2}) {
          int next_shared = 0, next = 0;
          for (int block = 0; block < grid; ++block) {
            const StreamShare share = share_of(block, grid, shared, shared_cost, routed, 1);
            ASSERT_EQ(share.shared_begin, next_shared) << "block " << block << " of " << grid;
            ASSERT_GE(share.shared_end, share.shared_begin);
            next_shared = share.shared_end;
            ASSERT_EQ(share.routed_begin, next) << "block " << block << " of " << grid;
            ASSERT_GE(share.routed_end, share.routed_begin);
            next = share.routed_end;
          }
          EXPECT_EQ(next_shared, shared);
          EXPECT_EQ(next, routed);
        }
}

/// As many tiles as a launch may have: the products stay within 32 bits.
TEST(MoePlanTest, SharesOfTheLargestLaunch) {
  constexpr int kGrid = 132, kUpTiles = 80, kUpSlices = 40;
  constexpr int kGroups = StreamGeometry::kMostPairs, kSharedTiles = 32 * kUpTiles;
  int next = 0;
  for (int block = 0; block < kGrid; ++block) {
    const StreamShare share =
        share_of(block, kGrid, kSharedTiles, kUpSlices, kGroups * kUpTiles, kUpSlices);
    ASSERT_EQ(share.routed_begin, next);
    ASSERT_GT(share.routed_end, share.routed_begin);
    next = share.routed_end;
  }
  EXPECT_EQ(next, kGroups * kUpTiles);
}

TEST(MoePlanTest, SharesAreEqual) {
  constexpr int kGrid = 132, kShared = 80, kRouted = 800;
  int most = 0, least = kRouted;
  for (int block = 0; block < kGrid; ++block) {
    const StreamShare share = share_of(block, kGrid, kShared, 1, kRouted, 1);
    const int tiles = share.shared_end - share.shared_begin + share.routed_end - share.routed_begin;
    most = std::max(most, tiles);
    least = std::min(least, tiles);
  }
  EXPECT_LE(most - least, 2);
}

TEST(MoePlanTest, TilesHoldTheirGroupAndNoneIsEmpty) {
  for (const int most : {64, 80, 160, kGroupedTokens})
    for (int count = 1; count < 20000; count += count < 2000 ? 1 : 37) {
      const int tiles = ceil_div(count, most), tokens = tile_tokens(count, tiles);
      ASSERT_LE(tokens, most) << count;
      ASSERT_GE(tokens * tiles, count) << count;
      ASSERT_LT(tokens * (tiles - 1), count) << count;
    }
}

TEST(MoePlanTest, SharedTilesFillTheDevice) {
  constexpr int kWeightTiles = 5, kSms = 132;
  const auto tiles = [](int rows, int tokens) { return ceil_div(rows, tokens) * kWeightTiles; };
  for (int rows = 1; rows <= kGroupedRows; ++rows) {
    const int tokens = shared_tile_tokens(rows, kWeightTiles, kSms);
    ASSERT_GE(tokens, 64) << rows;
    ASSERT_LE(tokens, kGroupedTokens) << rows;
    ASSERT_EQ(tokens % 8, 0) << rows;
    // No more rounds than the longest tiles take.
    ASSERT_EQ(ceil_div(tiles(rows, tokens), kSms), ceil_div(tiles(rows, kGroupedTokens), kSms))
        << rows;
  }
  EXPECT_EQ(shared_tile_tokens(2048, kWeightTiles, kSms), 80);
  EXPECT_EQ(shared_tile_tokens(64, kWeightTiles, kSms), 64);
}

TEST(MoePlanTest, ScratchIsBounded) {
  constexpr size_t kLimit = size_t{1} << 30;
  EXPECT_LT(grouped_scratch(kReleased, kGroupedRows).bytes(), kLimit);
  const MoeShape codes = with_types(kReleased, DType::kF8E4M3, DType::kBF16);
  EXPECT_LT(grouped_scratch(codes, kGroupedRows).bytes(), kLimit);
  EXPECT_LT(stream_scratch(kReleased, stream_rows(kReleased)).bytes(), kLimit);
  EXPECT_LT(stream_scratch(kReleased, generic_rows(kReleased)).bytes(), kLimit);
  EXPECT_GE(stream_rows(kReleased), 256);
  EXPECT_GE(inner_stride({.width = 17, .shared_width = 5}), 17);
  EXPECT_EQ(inner_stride({.width = 17, .shared_width = 5}) % 8, 0);
}

class Experts {
 public:
  explicit Experts(size_t count) {
    for (size_t index = 0; index < count; ++index) {
      const auto matrix = [&](size_t place) {
        return ops::LinearWeight{.data = bytes_.data() + (3 * index + place) * kBytes,
                                 .dtype = DType::kBF16,
                                 .out_features = 4,
                                 .in_features = 8};
      };
      experts.push_back({.gate = matrix(0), .up = matrix(1), .down = matrix(2)});
    }
  }
  std::vector<ops::ExpertWeight> experts{};

 private:
  static constexpr size_t kBytes = 64;
  std::array<std::byte, 16 * kBytes> bytes_{};
};

TEST(MoeWeightsTest, EqualDistancesBecomeStrides) {
  const Experts data(5);
  const ExpertStack stack = stack_experts(data.experts);
  for (size_t index = 0; index < data.experts.size(); ++index) {
    const auto place = static_cast<ptrdiff_t>(index);
    EXPECT_EQ(stack.up.data + place * stack.up.stride, data.experts[index].up.data);
    EXPECT_EQ(stack.down.data + place * stack.down.stride, data.experts[index].down.data);
  }
  EXPECT_EQ(stack_experts(std::span(data.experts).first(1)).gate.stride, 0);
  EXPECT_EQ(stack_experts({}).gate.data, nullptr);
}

TEST(MoeWeightsTest, UnequalExpertsAreRefused) {
  Experts moved(3), other_type(3), other_size(3);
  std::swap(moved.experts[1].up, moved.experts[2].up);
  EXPECT_THROW(stack_experts(moved.experts), std::logic_error);
  other_type.experts[2].down.dtype = DType::kF32;
  EXPECT_THROW(stack_experts(other_type.experts), std::logic_error);
  other_size.experts[2].gate.out_features = 3;
  EXPECT_THROW(stack_experts(other_size.experts), std::logic_error);
}

}  // namespace
}  // namespace tessera::cuda::moe
