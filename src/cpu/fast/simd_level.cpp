// SPDX-License-Identifier: Apache-2.0
// Which instruction set this process uses: asked once, at the first product.
#include "cpu/fast/simd_level.h"

#include <initializer_list>

#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/linear_level.h"
#include "cpu/fast/rows_level.h"

namespace tessera::cpu {
namespace {

template <class Kernels>
struct Candidate {
  bool usable = false;
  const Kernels& (*kernels)() = nullptr;
};

template <class List, class Kernels>
List usable_levels(std::initializer_list<Candidate<Kernels>> best_first) {
  List list;
  for (const Candidate<Kernels>& candidate : best_first)
    if (candidate.usable) list.levels[list.count++] = &candidate.kernels();
  return list;
}

}  // namespace

InstructionSets instruction_sets() {
  InstructionSets sets;
#if defined(__x86_64__)
  __builtin_cpu_init();
  sets.v3 = __builtin_cpu_supports("x86-64-v3");
  sets.v4 = sets.v3 && __builtin_cpu_supports("x86-64-v4");
  sets.v4_vbmi = sets.v4 && __builtin_cpu_supports("avx512vbmi");
#endif
  return sets;
}

LevelList supported_levels() {
  [[maybe_unused]] const InstructionSets sets = instruction_sets();
  return usable_levels<LevelList, LevelKernels>({
#if defined(__x86_64__)
      {sets.v4_vbmi, avx512_vbmi_kernels},
      {sets.v4, avx512_kernels},
      {sets.v3, avx2_kernels},
#endif
      {true, base_kernels},
  });
}

RowLevels supported_row_levels() {
  [[maybe_unused]] const InstructionSets sets = instruction_sets();
  return usable_levels<RowLevels, RowKernels>({
#if defined(__x86_64__)
      {sets.v4, avx512_row_kernels},
      {sets.v3, avx2_row_kernels},
#endif
      {true, base_row_kernels},
  });
}

const LevelKernels& level_kernels() {
  static const LevelKernels& best = *supported_levels().levels[0];
  return best;
}

const RowKernels& row_kernels() {
  static const RowKernels& best = *supported_row_levels().levels[0];
  return best;
}

const char* simd_level() { return level_kernels().name; }

}  // namespace tessera::cpu
