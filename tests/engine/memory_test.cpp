// SPDX-License-Identifier: Apache-2.0
// Memory of a long prompt: state and bounded work space, nothing that grows with context times
// rows.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>

#include "tests/engine/model_harness.h"

namespace tessera::test {
namespace {

constexpr size_t kShort = 2048;
constexpr size_t kLong = 32000;  // with room for the declared context of 32768
constexpr double kAllowance = 128.0 * 1024 * 1024;
constexpr double kKibibyte = 1024;

double peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * kKibibyte;
}

TEST(Memory, ALongPromptNeedsItsStateAndABoundedWorkSpace) {
  const std::string dir = "../shared/models/small_fp8";
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is not on this machine";
  const auto model = load_model(dir, OpsKind::kFast);
  ASSERT_NE(model, nullptr);
  const auto ids = sample_ids(*model, kLong, 8);
  const auto run_prompt = [&](size_t count) {
    const ScopedSequence sequence = open_sequence(*model);
    EXPECT_TRUE(model->prefill(sequence.id(), std::span(ids).first(count)));
    return peak_bytes();
  };
  const double after_short = run_prompt(kShort);
  const double after_long = run_prompt(kLong);
  const StateLayout& layout = model->layout();
  const double state =
      static_cast<double>(layout.slot_bytes()) +
      static_cast<double>(layout.page_bytes()) * static_cast<double>(pages_for(kLong));
  EXPECT_LE(after_long - after_short, 2 * state + kAllowance);
}

}  // namespace
}  // namespace tessera::test
