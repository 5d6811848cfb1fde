// SPDX-License-Identifier: Apache-2.0
// The law of drafted text with a million draws a setting. Not part of the tests: it takes hours.
#include <gtest/gtest.h>

#include "tests/engine/draft_law.h"

namespace tessera::test {
namespace {

class DraftLawBench : public testing::TestWithParam<LawSetting> {};

TEST_P(DraftLawBench, JointDrawsFollowTheDefinition) {
  constexpr int kDraws = 1000000;
  check_draft_law(GetParam().sampling, kDraws);
}

INSTANTIATE_TEST_SUITE_P(Settings, DraftLawBench, testing::ValuesIn(law_settings()),
                         [](const auto& setting) { return std::string(setting.param.name); });

}  // namespace
}  // namespace tessera::test
