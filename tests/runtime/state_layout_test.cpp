// SPDX-License-Identifier: Apache-2.0
// The state table: sizes of the released model, alignment, no overlap, refusals.
#include "model/state_layout.h"

#include <gtest/gtest.h>
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "core/arena.h"
#include "runtime/state_fixture.h"
#include "runtime/state_snapshot.h"

namespace tessera {
namespace {

using state_fixture::for_each_part;
using state_fixture::tiny_config;

constexpr int kReleasedLayers = 48;
constexpr int kReleasedQsaInterval = 4;

ModelConfig released_config() {
  ModelConfig config;
  config.hidden = 2560;
  config.branches = 4;
  for (int layer = 0; layer < kReleasedLayers; ++layer)
    config.layers.push_back((layer + 1) % kReleasedQsaInterval == 0 ? LayerKind::kQsa
                                                                    : LayerKind::kGdn);
  config.gdn = {
      .key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .conv_kernel = 4};
  config.qsa = {.heads = 24,
                .kv_heads = 2,
                .head_dim = 256,
                .index_heads = 4,
                .index_dim = 128,
                .block = 4,
                .rotary_dim = 64};
  config.ple.layers = {1};
  config.ple.conv_kernel = 4;
  config.ple.ngram_size = 3;
  return config;
}

StateLayout make(const ModelConfig& config, const StateOptions& options) {
  return StateLayout::make(config, options).value();
}

TEST(StateLayout, RingsOfTheReleasedModel) {
  const StateLayout layout = make(released_config(), {.max_draft = 5});
  EXPECT_EQ(layout.entry(StatePart::kRawIndexKeys).slots, 16);
  EXPECT_EQ(layout.entry(StatePart::kPositions).slots, 16);
  EXPECT_EQ(layout.entry(StatePart::kGdnConv).slots, 16);
  EXPECT_EQ(layout.entry(StatePart::kPleConv).slots, 16);
  EXPECT_EQ(layout.entry(StatePart::kTokenIds).slots, 8);
  EXPECT_EQ(layout.entry(StatePart::kRawIndexKeys).reach, 3);
  EXPECT_EQ(layout.entry(StatePart::kGdnConv).reach, 3);
  EXPECT_EQ(layout.entry(StatePart::kPleConv).reach, 9);
  EXPECT_EQ(layout.entry(StatePart::kTokenIds).reach, 2);
}

TEST(StateLayout, SizesOfTheReleasedModel) {
  constexpr size_t kKib = 1024;
  const StateLayout layout = make(released_config(), {.cache = DType::kBF16, .draft_layer = true});
  EXPECT_EQ(layout.entry(StatePart::kKeys).layers.size(), 13U);
  EXPECT_EQ(layout.entry(StatePart::kKeys).entry_bytes, 64 * kKib);
  EXPECT_EQ(layout.entry(StatePart::kValues).entry_bytes, 64 * kKib);
  EXPECT_EQ(layout.entry(StatePart::kIndexKeys).entry_bytes, 8 * kKib);
  EXPECT_EQ(layout.page_bytes(), 13 * (128 + 8) * kKib);
  EXPECT_EQ(layout.entry(StatePart::kGdnMatrix).entry_bytes, 3 * kKib * kKib);
  EXPECT_EQ(layout.entry(StatePart::kGdnMatrix).layers.size(), 36U);
  EXPECT_EQ(layout.entry(StatePart::kGdnConv).entry_bytes, 40 * kKib);
  EXPECT_EQ(layout.entry(StatePart::kWideResidual).entry_bytes, 40 * kKib);
}

TEST(StateLayout, CacheTypeDecidesKeysAndValuesOnly) {
  const StateLayout wide = make(released_config(), {.cache = DType::kF32});
  const StateLayout narrow = make(released_config(), {.cache = DType::kBF16});
  for (const StatePart part : {StatePart::kKeys, StatePart::kValues})
    EXPECT_EQ(wide.entry(part).entry_bytes, 2 * narrow.entry(part).entry_bytes);
  EXPECT_EQ(wide.entry(StatePart::kIndexKeys).entry_bytes,
            narrow.entry(StatePart::kIndexKeys).entry_bytes);
  EXPECT_EQ(wide.slot_bytes(), narrow.slot_bytes());
  EXPECT_EQ(wide.cache_dtype(), DType::kF32);
  EXPECT_EQ(narrow.cache_dtype(), DType::kBF16);
  const int qsa_layer = kReleasedQsaInterval - 1;
  EXPECT_EQ(narrow.page(StatePart::kValues, qsa_layer, nullptr).dtype, DType::kBF16);
  EXPECT_EQ(narrow.page(StatePart::kIndexKeys, qsa_layer, nullptr).dtype, DType::kF32);
}

TEST(StateLayout, DraftLayerAddsItsParts) {
  const StateLayout without = make(tiny_config(), {.draft_layer = false});
  const StateLayout with = make(tiny_config(), {.draft_layer = true});
  const int draft_layer = tiny_config().num_layers();
  for (const StatePart part : {StatePart::kKeys, StatePart::kValues, StatePart::kIndexKeys,
                               StatePart::kRawIndexKeys, StatePart::kPositions}) {
    EXPECT_EQ(without.entry(part).layers, (std::vector<int>{1, 3}));
    EXPECT_EQ(with.entry(part).layers, (std::vector<int>{1, 3, draft_layer}));
  }
  for (const StatePart part : {StatePart::kPendingGdn, StatePart::kPendingDrafts}) {
    EXPECT_EQ(without.entry(part).total_bytes(), 0U);
    EXPECT_GT(with.entry(part).total_bytes(), 0U);
  }
  EXPECT_EQ(with.entry(StatePart::kPendingGdn).layers, (std::vector<int>{0, 2}));
}

class StateLayoutOptions : public testing::TestWithParam<StateOptions> {};

TEST_P(StateLayoutOptions, RegionsAreAlignedDisjointAndInside) {
  const StateLayout layout = make(tiny_config(), GetParam());
  std::vector<std::pair<size_t, size_t>> slot, page;
  for_each_part(layout, [&](const StateEntry& entry, int, size_t offset) {
    EXPECT_EQ(offset % kCacheLine, 0U) << entry.name;
    EXPECT_GT(entry.layer_bytes(), 0U) << entry.name;
    auto& regions = entry.rule == IndexRule::kPage ? page : slot;
    regions.emplace_back(offset, offset + entry.layer_bytes());
  });
  const auto check = [](std::vector<std::pair<size_t, size_t>> regions, size_t total) {
    std::sort(regions.begin(), regions.end());
    for (size_t index = 1; index < regions.size(); ++index)
      EXPECT_LE(regions[index - 1].second, regions[index].first);
    ASSERT_FALSE(regions.empty());
    EXPECT_LE(regions.back().second, total);
    EXPECT_EQ(total % kCacheLine, 0U);
  };
  check(slot, layout.slot_bytes());
  check(page, layout.page_bytes());
}

TEST_P(StateLayoutOptions, LoopsVisitEachPartAndLayerOnce) {
  const StateLayout layout = make(tiny_config(), GetParam());
  std::multiset<std::pair<std::string, int>> visited, wanted;
  const auto visit = [&](const StateEntry& entry, int layer, size_t offset, size_t bytes) {
    EXPECT_EQ(offset, layout.offset(entry.part, layer));
    EXPECT_EQ(bytes, entry.layer_bytes());
    visited.emplace(entry.name, layer);
  };
  for_each_region(layout, Storage::kSlot, visit);
  for_each_region(layout, Storage::kPage, visit);
  for_each_part(layout, [&](const StateEntry& entry, int layer, size_t) {
    wanted.emplace(entry.name, layer);
  });
  EXPECT_EQ(visited, wanted);
}

TEST_P(StateLayoutOptions, RingsHoldAVerifyPassAndItsReach) {
  const StateOptions options = GetParam();
  const StateLayout layout = make(tiny_config(), options);
  for (const StateEntry& entry : layout.entries()) {
    if (entry.rule != IndexRule::kRing) continue;
    EXPECT_GE(entry.slots, options.max_draft + 1 + entry.reach) << entry.name;
    EXPECT_LT(entry.slots, 2 * (options.max_draft + 1 + entry.reach)) << entry.name;
    EXPECT_EQ(entry.slots & (entry.slots - 1), 0) << entry.name;
    const ops::RingRef ring = layout.ring(entry.part, entry.layers.front());
    std::vector<std::byte> slot(layout.slot_bytes());
    EXPECT_EQ(ring.entry(slot.data(), entry.slots + 1) - ring.entry(slot.data(), 0),
              static_cast<std::ptrdiff_t>(entry.entry_bytes % entry.layer_bytes()));
    EXPECT_EQ(ring.reach, entry.reach);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, StateLayoutOptions,
    testing::Values(StateOptions{}, StateOptions{.max_draft = 0},
                    StateOptions{.max_draft = 63, .draft_layer = true},
                    StateOptions{.cache = DType::kBF16, .max_draft = 3, .draft_layer = true}));

TEST(StateLayout, PartsAreNamedInOrder) {
  const StateLayout layout = make(tiny_config(), {});
  std::set<std::string> names;
  for (int index = 0; index < kNumStateParts; ++index) {
    const auto part = static_cast<StatePart>(index);
    EXPECT_EQ(layout.entry(part).part, part);
    names.insert(layout.entry(part).name);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumStateParts));
}

TEST(StateLayout, PageReferenceUsesTheWholePageAsStride) {
  const StateLayout layout = make(tiny_config(), {});
  std::byte memory{};
  const ops::PageRef keys = layout.page(StatePart::kKeys, 3, &memory);
  EXPECT_EQ(keys.page_stride, layout.page_bytes());
  EXPECT_EQ(keys.offset, layout.offset(StatePart::kKeys, 3));
  EXPECT_EQ(keys.dtype, DType::kF32);
}

TEST(StateLayout, RefusesABlockThatDoesNotDivideThePage) {
  for (const int block : {-4, 0, 3, 48, 128}) {
    ModelConfig config = tiny_config();
    config.qsa.block = block;
    const Result<StateLayout> layout = StateLayout::make(config, {});
    ASSERT_FALSE(layout.has_value()) << block;
    EXPECT_EQ(layout.error().code, Errc::kUnsupported);
    EXPECT_NE(layout.error().message().find(std::to_string(block)), std::string::npos);
  }
}

TEST(StateLayout, RefusesADraftDepthOutOfRange) {
  for (const int max_draft : {-1, 64}) {
    const Result<StateLayout> layout = StateLayout::make(tiny_config(), {.max_draft = max_draft});
    ASSERT_FALSE(layout.has_value());
    EXPECT_EQ(layout.error().code, Errc::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tessera
