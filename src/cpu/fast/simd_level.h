// SPDX-License-Identifier: Apache-2.0
// What the compile flags of the level files demand of the processor: one predicate per -march.
#pragma once

namespace tessera::cpu {

/// Each set contains the ones before it.
struct InstructionSets {
  bool v3 = false;       // -march=x86-64-v3: AVX2, FMA, BMI, F16C, MOVBE, LZCNT
  bool v4 = false;       // -march=x86-64-v4: AVX-512 F, BW, CD, DQ, VL
  bool v4_vbmi = false;  // and -mavx512vbmi
};

/// Of this processor and its operating system.
InstructionSets instruction_sets();

}  // namespace tessera::cpu
