// SPDX-License-Identifier: Apache-2.0
// The scheduler's invariants over random situations.
#include "runtime/scheduler.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "ops/rows.h"

namespace tessera {
namespace {

TEST(Scheduler, NothingToDoIsAnEmptyRound) { EXPECT_TRUE(plan_round({}, 64).empty()); }

TEST(Scheduler, ChunksEndOnTheAbsoluteGrid) {
  EXPECT_EQ(prefill_rows(0, 1000, 128), 128);
  EXPECT_EQ(prefill_rows(10, 1000, 128), 118);  // page 0: ends at 128
  EXPECT_EQ(prefill_rows(128, 1000, 128), 128);
  EXPECT_EQ(prefill_rows(200, 1000, 128), 120);  // page 3 starts at 192: ends at 320
  EXPECT_EQ(prefill_rows(10, 5, 128), 5);
}

RC_GTEST_PROP(Scheduler, EveryDecodingSequenceRunsAndOnePromptAdvances, ()) {
  constexpr int kMaxChunks = 8;
  const int chunk = *rc::gen::inRange(1, kMaxChunks) * ops::kPageTokens;
  std::vector<RunningView> running;
  const size_t count = *rc::gen::inRange<size_t>(0, 20);
  for (size_t index = 0; index < count; ++index)
    running.push_back({*rc::gen::inRange<int64_t>(0, 300000), *rc::gen::inRange<int64_t>(0, 3000)});
  const Round round = plan_round(running, chunk);

  std::vector<size_t> decoding;
  for (size_t index = 0; index < count; ++index)
    if (running[index].prompt_left == 0) decoding.push_back(index);
  RC_ASSERT(round.decode == decoding);
  const auto oldest = std::find_if(running.begin(), running.end(),
                                   [](const RunningView& view) { return view.prompt_left > 0; });
  RC_ASSERT(round.prefill.has_value() == (oldest != running.end()));
  if (!round.prefill) return;
  RC_ASSERT(round.prefill->index == static_cast<size_t>(oldest - running.begin()));
  const int64_t end = oldest->position + round.prefill->rows;
  RC_ASSERT(round.prefill->rows > 0 && round.prefill->rows <= chunk);
  RC_ASSERT(end % ops::kPageTokens == 0 || round.prefill->rows == oldest->prompt_left);
}

}  // namespace
}  // namespace tessera
