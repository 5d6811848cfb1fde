// SPDX-License-Identifier: Apache-2.0
// The text of the bounds has the numbers that decide.
#include "eval/verify_bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(VerifyBounds, TheTextFollowsTheNumbers) {
  const EngineOptions options;
  const VerifyBounds bounds{.relative_l2 = 0.125,
                            .golden_margin = 0.25,
                            .reference_margin = 0.375,
                            .perplexity = 0.0625,
                            .draft_flips = 0.03125};
  const std::string text = describe_bounds(options, bounds);
  EXPECT_THAT(text, HasSubstr("relative L2 <= 0.125"));
  EXPECT_THAT(text, HasSubstr("0.25 (golden)"));
  EXPECT_THAT(text, HasSubstr("0.375 (reference.json)"));
  EXPECT_THAT(text, HasSubstr("perplexity within 0.0625"));
  EXPECT_THAT(text, HasSubstr("0.03125 of the first drafts"));
  EXPECT_THAT(text, HasSubstr("all sets equal"));
}

TEST(VerifyBounds, TheTextNamesWhatIsOnlyReported) {
  EngineOptions options;
  EXPECT_THAT(describe_bounds(options, verify_bounds(options)),
              HasSubstr("selected blocks equal, expert sets reported"));
  options.cache_type = CacheType::kBF16;
  const std::string bf16 = describe_bounds(options, verify_bounds(options));
  EXPECT_THAT(bf16, HasSubstr("BF16 caches"));
  EXPECT_THAT(bf16, HasSubstr("inner tensors reported"));
  EXPECT_THAT(bf16, HasSubstr("selected blocks equal but for ties within BF16 rounding"));
  options.cache_type = CacheType::kF32;
  options.ops = OpsKind::kReference;
  EXPECT_THAT(describe_bounds(options, verify_bounds(options)), Not(HasSubstr("reported")));
}

}  // namespace
}  // namespace tessera
