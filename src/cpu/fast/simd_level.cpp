// SPDX-License-Identifier: Apache-2.0
// Which instruction set this process uses: asked once, at the first product.
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/linear_level.h"

namespace tessera::cpu {

LevelList supported_levels() {
  LevelList list;
  const auto add = [&](const LevelKernels& level) { list.levels[list.count++] = &level; };
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
  if (avx512 && __builtin_cpu_supports("avx512vbmi")) add(avx512_vbmi_kernels());
  if (avx512) add(avx512_kernels());
  if (avx2) add(avx2_kernels());
#endif
  add(base_kernels());
  return list;
}

const LevelKernels& level_kernels() {
  static const LevelKernels& best = *supported_levels().levels[0];
  return best;
}

const char* simd_level() { return level_kernels().name; }

}  // namespace tessera::cpu
