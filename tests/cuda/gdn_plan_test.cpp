// SPDX-License-Identifier: Apache-2.0
// Kernels of Gated DeltaNet, and how prompt rows are cut into chunks, slots and scratch memory.
#include "cuda/gdn/gdn_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "core/philox.h"

namespace tessera::cuda {
namespace {

constexpr GpuSpec kAmpere{.compute_major = 8, .num_sms = 108};

ops::GdnArgs released() {
  ops::GdnArgs args;
  args.shape = {
      .key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .conv_kernel = 4};
  args.conv_ring = {.offset = 64, .entry_bytes = 20480, .slots = 16, .reach = 3};
  args.matrix_offset = 4096;
  return args;
}

TEST(GdnPlanTest, ReleasedAndMicroHeadsTakeTheHopperKernels) {
  ops::GdnArgs args = released();
  EXPECT_EQ(supports_gdn_sm90(args, kH200), "");
  args.shape.key_heads = 1;
  args.shape.value_heads = 3;
  EXPECT_EQ(supports_gdn_sm90(args, kH200), "");
}

TEST(GdnPlanTest, EveryRefusalHasItsReason) {
  std::set<std::string_view> reasons{supports_gdn_sm90(released(), kAmpere)};
  const auto refuse = [&](auto&& change) {
    ops::GdnArgs args = released();
    change(args);
    reasons.insert(supports_gdn_sm90(args, kH200));
  };
  refuse([](ops::GdnArgs& args) { args.shape.key_dim = 64; });
  refuse([](ops::GdnArgs& args) { args.shape.value_dim = 96; });
  refuse([](ops::GdnArgs& args) { args.shape.conv_kernel = 3; });
  refuse([](ops::GdnArgs& args) { args.conv_ring.offset += 4; });
  refuse([](ops::GdnArgs& args) { args.matrix_offset += 8; });
  refuse([](ops::GdnArgs& args) { args.verify = true, args.pending_offset = 4; });
  EXPECT_EQ(reasons.size(), 7U);
  EXPECT_FALSE(reasons.contains(""));
}

TEST(GdnPlanTest, PendingRowsMatterToVerifyLaunchesOnly) {
  ops::GdnArgs args = released();
  args.pending_offset = 4;
  EXPECT_EQ(supports_gdn_sm90(args, kH200), "");
}

TEST(GdnPlanTest, FewHeadsHaveMultiprocessorsForThemselves) {
  const GdnDecodePlan halves{.blocks_per_head = 2, .alone = true}, whole{.alone = true};
  EXPECT_EQ(plan_gdn_decode(1, 48, kH200), halves);
  EXPECT_EQ(plan_gdn_decode(2, 48, kH200), whole);
  EXPECT_EQ(plan_gdn_decode(3, 48, kH200), GdnDecodePlan{});
  EXPECT_EQ(plan_gdn_decode(22, 3, kH200), halves);
  EXPECT_EQ(plan_gdn_decode(23, 3, kH200), whole);
  EXPECT_EQ(plan_gdn_decode(44, 3, kH200), whole);
  EXPECT_EQ(plan_gdn_decode(45, 3, kH200), GdnDecodePlan{});
}

TEST(GdnPlanTest, LaunchesThatWouldOverwriteTheirPastStoreItLater) {
  const ops::RingRef ring = released().conv_ring;
  const auto later = [&](int rows, ops::Role role) {
    const std::vector<ops::RowSpan> spans{{.num_rows = 1}, {.num_rows = rows}};
    return stores_ring_later({spans, rows + 1, role}, ring);
  };
  EXPECT_FALSE(later(6, ops::Role::kDecode));
  EXPECT_FALSE(later(13, ops::Role::kDecode));
  EXPECT_TRUE(later(14, ops::Role::kDecode));
  EXPECT_TRUE(later(1, ops::Role::kPrefill));
}

TEST(GdnPlanTest, ChunksCoverEveryRowOnceAndMeetOnTheGrid) {
  for (const int64_t position : {0, 1, 63, 64, 100, 4095})
    for (const int rows : {0, 1, 2, 63, 64, 65, 128, 200}) {
      int next = 0;
      const int chunks = gdn_num_chunks(position, rows);
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const GdnChunkRows at = gdn_chunk_rows(position, rows, chunk);
        ASSERT_EQ(at.first, next);
        ASSERT_GT(at.rows, 0);
        ASSERT_EQ((position + at.first) / ops::kGdnChunk,
                  (position + at.first + at.rows - 1) / ops::kGdnChunk);
        next += at.rows;
      }
      ASSERT_EQ(next, rows);
      ASSERT_LE(gdn_chunk_rows(position, rows, chunks).rows, 0);
    }
}

TEST(GdnPlanTest, SlotsOfTwoSpansNeverMeet) {
  uint64_t draws = 0;
  const auto below = [&](int limit) {
    return static_cast<int>(philox_uniform(17, draws++, DrawPurpose::kWeights) * limit);
  };
  for (int trial = 0; trial < 200; ++trial) {
    const int num_spans = 1 + below(12);
    int row_begin = 0, next_slot = 0;
    for (int span = 0; span < num_spans; ++span) {
      const int rows = below(4) == 0 ? 0 : below(300);
      const int first = gdn_first_slot(row_begin, span);
      ASSERT_GE(first, next_slot);
      next_slot = first + gdn_num_chunks(below(100), rows);
      row_begin += rows;
    }
    ASSERT_LE(next_slot, gdn_num_slots(row_begin, num_spans));
  }
}

TEST(GdnPlanTest, WindowsAreAlikeAndHoldAllSlots) {
  EXPECT_EQ(plan_gdn_window(3), 3);
  EXPECT_EQ(plan_gdn_window(gdn_num_slots(2048, 1)), 34);
  EXPECT_EQ(plan_gdn_window(gdn_num_slots(8192, 1)), 33);
  for (int slots = 1; slots < 300; ++slots) {
    const int window = plan_gdn_window(slots);
    ASSERT_LE(window, kGdnWindowSlots);
    ASSERT_LT((slots + window - 1) / window, slots / kGdnWindowSlots + 2);
  }
}

TEST(GdnPlanTest, ScratchPiecesFollowEachOtherOnVectors) {
  const GdnScratch scratch = plan_gdn_scratch(released().shape, kGdnWindowSlots);
  constexpr size_t kTile = 64 * 128 * 2, kSlots = kGdnWindowSlots;
  EXPECT_EQ(scratch.keys, 0U);
  EXPECT_EQ(scratch.queries, kSlots * 16 * kTile);
  EXPECT_EQ(scratch.values, 2 * kSlots * 16 * kTile);
  EXPECT_EQ(scratch.systems, scratch.values + kSlots * 48 * kTile);
  EXPECT_EQ(scratch.gates, scratch.systems + kSlots * 48 * kTile);
  EXPECT_EQ(scratch.bytes, scratch.gates + kSlots * 48 * 3 * 64 * 4);
  EXPECT_LT(scratch.bytes, size_t{80} << 20);
  for (const size_t at : {scratch.queries, scratch.values, scratch.systems, scratch.gates})
    EXPECT_EQ(at % 128, 0U);
}

}  // namespace
}  // namespace tessera::cuda
