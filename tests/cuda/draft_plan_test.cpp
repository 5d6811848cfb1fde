// SPDX-License-Identifier: Apache-2.0
// Which kernel makes the draft layer's input, and that a tile covers every width below the largest.
#include "cuda/draft/draft_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace tessera::cuda {
namespace {

alignas(16) std::array<float, 8> storage{};

ops::DraftInputArgs released() {
  return {.table = {.data = storage.data(),
                    .dtype = DType::kBF16,
                    .out_features = 1000,
                    .in_features = 2560},
          .wide = storage.data(),
          .norm_embedding = storage.data(),
          .norm_hidden = storage.data(),
          .rows = 4,
          .branches = 4,
          .embedded = storage.data(),
          .normed = storage.data()};
}

TEST(DraftPlan, ATileCoversEveryWidthAndNoneIsWasted) {
  const int most = kDraftTiles.back().covers();
  int narrowest = 0;
  for (int wide = 1; wide <= most; ++wide) {
    const int tile = plan_draft(wide);
    ASSERT_GE(tile, narrowest);
    narrowest = tile;
    EXPECT_GE(kDraftTiles[static_cast<size_t>(tile)].covers(), wide);
    if (tile > 0) {
      EXPECT_LT(kDraftTiles[static_cast<size_t>(tile) - 1].covers(), wide);
    }
  }
  EXPECT_EQ(plan_draft(most + 1), -1);
  EXPECT_EQ(kDraftTiles[static_cast<size_t>(plan_draft(4 * 2560))].covers(), 4 * 2560);
}

TEST(DraftPlan, RefusalsHaveReasons) {
  EXPECT_EQ(supports_draft_vectors(released()), "");
  const auto refused = [](auto change) {
    ops::DraftInputArgs args = released();
    change(args);
    return std::string(supports_draft_vectors(args));
  };
  using Args = ops::DraftInputArgs;
  EXPECT_NE(refused([](Args& args) { args.table.dtype = DType::kF8E4M3; }).find("BF16"),
            std::string::npos);
  EXPECT_NE(refused([](Args& args) { args.table.in_features = 2564; }).find("multiple"),
            std::string::npos);
  EXPECT_NE(refused([](Args& args) { args.norm_hidden = storage.data() + 1; }).find("aligned"),
            std::string::npos);
  EXPECT_NE(refused([](Args& args) { args.normed = storage.data() + 1; }).find("aligned"),
            std::string::npos);
  EXPECT_NE(refused([](Args& args) { args.branches = 13; }).find("wide"), std::string::npos);
}

}  // namespace
}  // namespace tessera::cuda
