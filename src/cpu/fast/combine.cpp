// SPDX-License-Identifier: Apache-2.0
// Gated Residual write-back: one pass over the wide rows, bound by memory.
#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/row_math.h"
#include "cpu/fast/vector_math.h"

namespace tessera::cpu {

void fast_combine(const ops::CombineArgs& args) {
  constexpr float kInjectScale = 2.0F;
  const int64_t branches = args.branches;
  parallel_for(args.rows * branches, grain_for(args.hidden), [&](int64_t begin, int64_t end, int) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const float gate = kInjectScale * vector_sigmoid(args.inject[piece]);
      add_scaled(gate, floats(args.out) + piece / branches * args.hidden,
                 floats(args.wide) + piece * args.hidden, args.hidden);
    }
  });
}

}  // namespace tessera::cpu
