// SPDX-License-Identifier: Apache-2.0
// Rows of a head gathered into a shorter one, of every type that a head may have.
#include "model/draft_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tessera {
namespace {

constexpr int kRows = 200, kCols = 130;  // several scale blocks each way
const std::vector<int32_t> kIds = {0, 5, 127, 128, 199};

/// Weights with nothing but a head, and a draft layer that has none of its own.
ModelWeights weights_with(ops::LinearWeight head) {
  ModelWeights weights;
  head.out_features = kRows;
  head.in_features = kCols;
  weights.lm_head = head;
  weights.draft.emplace();
  return weights;
}

TEST(ShortHead, CopiesRowsAsTheyAre) {
  std::vector<uint16_t> values(size_t{kRows} * kCols);
  for (size_t at = 0; at < values.size(); ++at) values[at] = static_cast<uint16_t>(at * 7);
  ModelWeights weights = weights_with({.data = values.data(), .dtype = DType::kBF16});
  cut_draft_head(weights, kIds);
  const ops::LinearWeight& head = weights.draft->own_head;
  EXPECT_EQ(weights.draft->shortlist, kIds);
  EXPECT_EQ(head.dtype, DType::kBF16);
  ASSERT_EQ(head.out_features, static_cast<int>(kIds.size()));
  ASSERT_EQ(head.in_features, kCols);
  for (size_t at = 0; at < kIds.size(); ++at)
    EXPECT_EQ(
        std::memcmp(static_cast<const uint16_t*>(head.data) + at * kCols,
                    values.data() + static_cast<ptrdiff_t>(kIds[at]) * kCols, head.row_bytes()),
        0)
        << kIds[at];
}

TEST(ShortHead, WidensFp8WithTheScalesOfEachRow) {
  std::vector<uint8_t> values(size_t{kRows} * kCols);
  for (size_t at = 0; at < values.size(); ++at) values[at] = static_cast<uint8_t>(at % 0x70);
  const std::vector<float> scales = {1.0F, 2.0F, 0.5F, 4.0F};  // exact in BF16
  ModelWeights weights =
      weights_with({.data = values.data(), .dtype = DType::kF8E4M3, .scale = scales.data()});
  cut_draft_head(weights, kIds);
  const ops::LinearWeight& head = weights.draft->own_head;
  EXPECT_EQ(head.dtype, DType::kBF16);
  EXPECT_EQ(head.scale, nullptr);
  const auto* rows = static_cast<const uint16_t*>(head.data);
  for (size_t at = 0; at < kIds.size(); ++at)
    for (size_t col = 0; col < kCols; ++col) {
      const auto row = static_cast<size_t>(kIds[at]);
      const float scale = scales[row / ops::kScaleBlock * 2 + col / ops::kScaleBlock];
      EXPECT_EQ(bf16_to_float(rows[at * kCols + col]),
                f8e4m3_to_float(values[row * kCols + col]) * scale);
    }
}

TEST(DraftHead, QuantisedBlocksReachTheLargestValue) {
  std::vector<uint16_t> values(size_t{kRows} * kCols);
  for (size_t at = 0; at < values.size(); ++at)
    values[at] =
        float_to_bf16(std::sin(static_cast<float>(at)) * (at / kCols < 128 ? 3.0F : 0.01F));
  ModelWeights weights = weights_with({.data = values.data(), .dtype = DType::kBF16});
  quantise_draft_head(weights);
  const ops::LinearWeight& head = weights.draft->own_head;
  EXPECT_TRUE(weights.draft->shortlist.empty());
  ASSERT_EQ(head.dtype, DType::kF8E4M3);
  ASSERT_EQ(head.out_features, kRows);
  const auto* codes = static_cast<const uint8_t*>(head.data);
  std::vector<float> largest(4);
  for (size_t row = 0; row < kRows; ++row)
    for (size_t col = 0; col < kCols; ++col) {
      const size_t block = row / ops::kScaleBlock * 2 + col / ops::kScaleBlock;
      const float value = f8e4m3_to_float(codes[row * kCols + col]);
      largest[block] = std::max(largest[block], std::abs(value));
      const float exact = bf16_to_float(values[row * kCols + col]);
      // Three bits of mantissa; below the normal numbers a fixed step.
      const float bound = std::max(std::abs(exact) * 0x1p-4F, head.scale[block] * 0x1p-10F);
      EXPECT_NEAR(value * head.scale[block], exact, bound * 1.001F);
    }
  for (const float each : largest) EXPECT_EQ(each, 448.0F);
}

TEST(DraftHead, QuantisesAShortlistAndLeavesFp8Alone) {
  const std::vector<float> values(size_t{kRows} * kCols, 0.0F);
  ModelWeights weights = weights_with({.data = values.data(), .dtype = DType::kF32});
  cut_draft_head(weights, kIds);
  quantise_draft_head(weights);
  const ops::LinearWeight head = weights.draft->own_head;
  EXPECT_EQ(head.out_features, static_cast<int>(kIds.size()));
  EXPECT_EQ(head.scale[0], 1.0F) << "a block of zeros";
  quantise_draft_head(weights);
  EXPECT_EQ(weights.draft->own_head.data, head.data);
}

}  // namespace
}  // namespace tessera
