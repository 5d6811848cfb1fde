// SPDX-License-Identifier: Apache-2.0
// Which kernels of the n-gram memory are chosen, and where their scratch lies.
#include "cuda/ple/ple_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace tessera::cuda {
namespace {

alignas(16) std::array<float, 8> storage{};

/// The released geometry, one sequence of `rows` rows.
ops::PleMixArgs released(const ops::RowSpan& span, ops::Role role = ops::Role::kDecode) {
  return {.key = storage.data(),
          .value = storage.data(),
          .norm_key = storage.data(),
          .norm_query = storage.data(),
          .norm_conv = storage.data(),
          .conv_weight = storage.data(),
          .wide = storage.data(),
          .batch = {{&span, 1}, span.num_rows, role},
          .conv_ring = {.offset = 64, .entry_bytes = 20480, .slots = 16, .reach = 9},
          .branches = 4,
          .hidden = 2560,
          .conv_kernel = 4,
          .dilation = 3,
          .eps = 1e-6F};
}

std::string decode_reason(const ops::PleMixArgs& args) {
  return std::string(supports_ple_decode(args));
}

TEST(PlePlan, ReleasedDecodeRowsTakeOneLaunch) {
  for (int rows = 1; rows <= 6; ++rows) {
    const ops::RowSpan span{.num_rows = rows, .position = 1000};
    EXPECT_EQ(decode_reason(released(span)), "");
  }
}

TEST(PlePlan, MicroTakesTheSameKernels) {
  const ops::RowSpan span{.num_rows = 4};
  ops::PleMixArgs args = released(span);
  args.hidden = 128;
  args.conv_ring.entry_bytes = 1024;
  EXPECT_EQ(decode_reason(args), "");
  EXPECT_EQ(kPleTiles[static_cast<size_t>(plan_ple_tile(args.hidden))], 32);
}

TEST(PlePlan, PromptsAndLongSpansStoreTheRingLater) {
  const ops::RowSpan span{.num_rows = 4};
  EXPECT_NE(decode_reason(released(span, ops::Role::kPrefill)), "");
  const ops::RowSpan longest{.num_rows = 7}, too_long{.num_rows = 8};
  EXPECT_FALSE(ple_stores_ring_later(released(longest).batch, released(longest).conv_ring));
  EXPECT_TRUE(ple_stores_ring_later(released(too_long).batch, released(too_long).conv_ring));
}

TEST(PlePlan, OddShapesGoElementByElement) {
  const ops::RowSpan span{.num_rows = 1};
  const auto refused = [&](auto&& change) {
    ops::PleMixArgs args = released(span);
    change(args);
    return !supports_ple_vectors(args).empty();
  };
  EXPECT_FALSE(refused([](ops::PleMixArgs&) {}));
  EXPECT_TRUE(refused([](ops::PleMixArgs& args) { args.hidden = 65; }));
  EXPECT_TRUE(refused([](ops::PleMixArgs& args) { args.conv_kernel = 3; }));
  EXPECT_TRUE(refused([](ops::PleMixArgs& args) { args.conv_ring.offset = 36; }));
  EXPECT_TRUE(refused([](ops::PleMixArgs& args) { args.conv_ring.entry_bytes = 130; }));
  EXPECT_TRUE(refused([](ops::PleMixArgs& args) { args.norm_key += 1; }));
  EXPECT_TRUE(refused([](ops::PleMixArgs& args) { args.delta = storage.data() + 1; }));
  ops::PleMixArgs other_dilation = released(span);
  other_dilation.dilation = 2;
  EXPECT_EQ(std::string(supports_ple_vectors(other_dilation)), "");
  EXPECT_NE(decode_reason(other_dilation), "");
}

TEST(PlePlan, ScratchHoldsInputsAndGates) {
  const PleScratch scratch = plan_ple_scratch(3, 4, 65);
  EXPECT_GE(scratch.gates, 3U * 4 * 65 * 2);
  EXPECT_EQ(scratch.gates % 256, 0U);
  EXPECT_EQ(scratch.bytes, scratch.gates + 3 * 4 * sizeof(float));
}

TEST(PlePlan, TablesOfWholeVectorsAreReadEightElementsAtATime) {
  ops::NgramTable table{.shards = {storage.data()}, .row_dim = 160};
  ops::NgramGatherArgs args{.table = &table, .out = storage.data()};
  EXPECT_EQ(std::string(supports_gather_vectors(args)), "");
  args.out = storage.data() + 1;
  EXPECT_NE(std::string(supports_gather_vectors(args)), "");
  args.out = storage.data();
  table.shards.push_back(storage.data() + 1);
  EXPECT_NE(std::string(supports_gather_vectors(args)), "");
  table.shards.pop_back();
  table.row_dim = 5;
  EXPECT_NE(std::string(supports_gather_vectors(args)), "");
}

}  // namespace
}  // namespace tessera::cuda
