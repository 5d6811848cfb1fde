// SPDX-License-Identifier: Apache-2.0
// Router: two products, then exact top-k in a total order, so ties and NaN never depend on the
// machine.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/linear_kernels.h"

namespace tessera::cpu {
namespace {

/// Elementary operations per expert of a row: the scan, and some insertions.
constexpr double kWorkPerExpert = 4;

/// Higher logit first; NaN ranks below every number. The lower id comes first in the scan, so a tie
/// never moves it. Logits order exactly as the softmax does, without its rounding.
bool better(float left, float right) {
  return left > right || (std::isnan(right) && !std::isnan(left));
}

/// Insertion into the sorted list of the best seen so far.
void select(const float* logits, int num_experts, int top_k, int32_t* ids) {
  int held = 0;
  for (int expert = 0; expert < num_experts; ++expert) {
    if (held == top_k && !better(logits[expert], logits[ids[held - 1]])) continue;
    int place = held < top_k ? held++ : held - 1;
    for (; place > 0 && better(logits[expert], logits[ids[place - 1]]); --place)
      ids[place] = ids[place - 1];
    ids[place] = expert;
  }
}

bool has_nan(const float* logits, int num_experts) {
  bool found = false;
  for (int expert = 0; expert < num_experts; ++expert) found |= std::isnan(logits[expert]);
  return found;
}

/// With normalisation the full softmax sum cancels: only the selected ones are needed. A NaN that
/// was not selected still poisons the softmax, so that it is seen and not routed around.
void weigh(const float* logits, const ops::RouterArgs& args, const int32_t* ids, float* weights) {
  const double best = double{logits[ids[0]]};
  double total = has_nan(logits, args.num_experts) ? std::numeric_limits<double>::quiet_NaN() : 0;
  if (args.normalize) {
    for (int slot = 0; slot < args.top_k; ++slot)
      total += std::exp(double{logits[ids[slot]]} - best);
  } else {
    for (int expert = 0; expert < args.num_experts; ++expert)
      total += std::exp(double{logits[expert]} - best);
  }
  for (int slot = 0; slot < args.top_k; ++slot)
    weights[slot] = static_cast<float>(std::exp(double{logits[ids[slot]]} - best) / total);
}

}  // namespace

void fast_router(const ops::RouterArgs& args, Arena& scratch) {
  const std::array products = {
      LinearJob{args.gate, floats(args.x), args.gate.in_features, args.logits, args.num_experts},
      LinearJob{args.shared_gate, floats(args.x), args.gate.in_features, args.shared_logit, 1},
  };
  linear_run(products, args.rows, args.role, scratch);
  if (args.top_k <= 0) return;
  parallel_for(args.rows, grain_for(kWorkPerExpert * args.num_experts),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t row = begin; row < end; ++row) {
                   const float* logits = args.logits + row * args.num_experts;
                   int32_t* ids = args.ids + row * args.top_k;
                   select(logits, args.num_experts, args.top_k, ids);
                   weigh(logits, args, ids, args.weights + row * args.top_k);
                 }
               });
}

}  // namespace tessera::cpu
