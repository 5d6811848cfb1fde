// SPDX-License-Identifier: Apache-2.0
// Cuts of the one-launch mixer: every weight is held by exactly one block, and shapes that no tile
// fits are refused with a reason. Launch shapes of the prompt kernels.
#include "cuda/mixer/mixer_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/combine/combine_plan.h"

namespace tessera::cuda {
namespace {

constexpr MixerShape kReleased{.branches = 4, .hidden = 2560, .rank = 320};

TEST(MixerPlanTest, ReleasedSizesRunInOneLaunchOnHopper) {
  EXPECT_EQ(std::string(supports_mixer_sm90(kReleased, kH200)), "");
  EXPECT_EQ(kMixerTiles[static_cast<size_t>(plan_mixer(kReleased))].blocks(), 128);
}

TEST(MixerPlanTest, RefusalsHaveReasons) {
  const auto refused = [](MixerShape shape, const GpuSpec& gpu) {
    return std::string(supports_mixer_sm90(shape, gpu));
  };
  GpuSpec ampere = kH200;
  ampere.compute_major = 8;
  EXPECT_NE(refused(kReleased, ampere).find("9.0"), std::string::npos);
  GpuSpec part = kH200;
  part.num_sms = 16;
  EXPECT_NE(refused(kReleased, part).find("SMs"), std::string::npos);
  MixerShape shape = kReleased;
  shape.branches = 3;
  EXPECT_NE(refused(shape, kH200).find("branches"), std::string::npos);
  shape = kReleased;
  shape.hidden += 4;
  EXPECT_NE(refused(shape, kH200).find("tile"), std::string::npos);
  for (DType MixerShape::* part_type : {&MixerShape::down, &MixerShape::up, &MixerShape::inject})
    for (const DType dtype : {DType::kF32, DType::kF8E4M3}) {
      shape = kReleased;
      shape.*part_type = dtype;
      EXPECT_NE(refused(shape, kH200).find("BF16"), std::string::npos);
    }
}

TEST(MixerPlanTest, EveryRowAndColumnHasOneBlock) {
  for (const MixerTile& tile : kMixerTiles) {
    SCOPED_TRACE(tile.hidden);
    EXPECT_EQ(tile.rank_rows() * tile.clusters, tile.rank);
    EXPECT_EQ(tile.inject_rows() * tile.inject_clusters(), MixerTile::kBranches);
    EXPECT_EQ(tile.slice() * MixerTile::kRanks, tile.wide());
    EXPECT_EQ(tile.columns() * tile.blocks(), tile.hidden);
    EXPECT_EQ(tile.up_tiles() * tile.up_splits(), tile.warps);
    EXPECT_EQ(tile.up_steps() * tile.up_splits() * MixerTile::kChunk, tile.rank);
    EXPECT_GE(tile.down_steps() * tile.warps, tile.down_chunks());
    EXPECT_GE(tile.down_tiles() * MixerTile::kWeightTile, tile.down_rows());
  }
}

TEST(PromptMixerPlanTest, TakesTheReleasedSizesOnHopper) {
  EXPECT_EQ(std::string(supports_mixer_prompt(kReleased, kH200)), "");
  GpuSpec ampere = kH200;
  ampere.compute_major = 8;
  EXPECT_NE(std::string(supports_mixer_prompt(kReleased, ampere)), "");
  MixerShape shape = kReleased;
  shape.rank = 64;
  EXPECT_NE(std::string(supports_mixer_prompt(shape, kH200)), "");
  shape = kReleased;
  shape.hidden += PromptMixer::kColumns;  // no whole round of finish_down
  EXPECT_NE(std::string(supports_mixer_prompt(shape, kH200)), "");
  shape = kReleased;
  shape.up = DType::kF8E4M3;
  EXPECT_NE(std::string(supports_mixer_prompt(shape, kH200)), "");
}

TEST(PromptMixerPlanTest, BlocksShareTheRowTilesAndFitTheDevice) {
  const int column_tiles = kReleased.hidden / PromptMixer::kColumns;
  for (const int rows : {1, 64, 65, 129, 600, 8192}) {
    SCOPED_TRACE(rows);
    const int parts = PromptMixer::row_parts(rows, kReleased.hidden, kH200.num_sms);
    EXPECT_GE(parts, 1);
    EXPECT_LE(parts, PromptMixer::row_tiles(rows));
    EXPECT_LE(parts * column_tiles, kH200.num_sms);
    EXPECT_GE(PromptMixer::low_bytes(rows), static_cast<size_t>(rows) * PromptMixer::kRank * 2);
  }
  EXPECT_EQ(PromptMixer::row_parts(8192, kReleased.hidden, kH200.num_sms), 3);
  EXPECT_EQ(PromptMixer::row_parts(8192, 256 * PromptMixer::kColumns, kH200.num_sms), 1);
}

TEST(CombinePlanTest, NarrowestTileThatHoldsABranch) {
  const auto threads = [](int hidden) {
    const int tile = plan_combine(hidden);
    return tile < 0 ? 0 : kCombineTiles[static_cast<size_t>(tile)].threads;
  };
  EXPECT_EQ(threads(8), 32);
  EXPECT_EQ(threads(256), 32);
  EXPECT_EQ(threads(264), 64);
  EXPECT_EQ(threads(2560), 320);
  EXPECT_EQ(threads(8192), 1024);
  EXPECT_EQ(threads(8200), 0);  // wider than a block
  EXPECT_EQ(threads(33), 0);    // rows are not aligned
  EXPECT_EQ(threads(65), 0);
}

}  // namespace
}  // namespace tessera::cuda
