// SPDX-License-Identifier: Apache-2.0
// A level may run only where the kernel lists every feature that its compile flags allow.
#include "cpu/fast/simd_level.h"

#include <gtest/gtest.h>
#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "cpu/fast/linear_level.h"
#include "cpu/fast/rows_level.h"

namespace tessera::cpu {
namespace {

#if defined(__x86_64__)
using Flags = std::set<std::string, std::less<>>;

Flags listed_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

bool has_all(const Flags& flags, std::initializer_list<std::string_view> wanted) {
  return std::all_of(wanted.begin(), wanted.end(),
                     [&](std::string_view flag) { return flags.contains(flag); });
}

TEST(SimdLevel, SetsAskForAllThatTheCompilerMayUse) {
  const Flags flags = listed_flags();
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags";
  const InstructionSets sets = instruction_sets();
  // "abm" is Linux's name of LZCNT.
  const bool v3 = has_all(
      flags, {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave", "popcnt"});
  const bool v4 = v3 && has_all(flags, {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"});
  EXPECT_EQ(sets.v3, v3);
  EXPECT_EQ(sets.v4, v4);
  EXPECT_EQ(sets.v4_vbmi, v4 && flags.contains("avx512vbmi"));
}
#endif

TEST(SimdLevel, BothKernelFamiliesFollowTheSets) {
  const InstructionSets sets = instruction_sets();
  const LevelList products = supported_levels();
  const RowLevels rows = supported_row_levels();
  EXPECT_EQ(products.count, 1 + sets.v3 + sets.v4 + sets.v4_vbmi);
  EXPECT_EQ(rows.count, 1 + sets.v3 + sets.v4);
  EXPECT_EQ(products.levels[products.count - 1], &base_kernels());
  EXPECT_EQ(rows.levels[rows.count - 1], &base_row_kernels());
}

}  // namespace
}  // namespace tessera::cpu
