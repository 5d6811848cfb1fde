// SPDX-License-Identifier: Apache-2.0
// The law of drafted text with the draws that a test may take; draft_law_bench has more.
#include <gtest/gtest.h>

#include "tests/engine/draft_law.h"

namespace tessera::test {
namespace {

constexpr int kDraws = 10000;

class DraftLaw : public testing::TestWithParam<LawSetting> {};

TEST_P(DraftLaw, JointDrawsFollowTheDefinition) { check_draft_law(GetParam().sampling, kDraws); }

TEST_P(DraftLaw, SoTheyDoInFlight) {
  check_draft_law(GetParam().sampling, kDraws, RoundDriver::kDevice);
}

INSTANTIATE_TEST_SUITE_P(Settings, DraftLaw, testing::ValuesIn(law_settings()),
                         [](const auto& setting) { return std::string(setting.param.name); });

}  // namespace
}  // namespace tessera::test
