// SPDX-License-Identifier: Apache-2.0
// Reference of the mixture of experts: router and experts.
#include <numeric>
#include <vector>

#include "cpu/reference/elements.h"
#include "cpu/reference/numerics.h"
#include "cpu/reference/reference_kernels.h"

namespace tessera::cpu::reference {
namespace {

/// Expert ids, best first: higher logit, then lower id; NaN below every number.
std::vector<int32_t> ranked(const float* logits, int num_experts) {
  std::vector<int32_t> ids(static_cast<size_t>(num_experts));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t left, int32_t right) {
    if (std::isnan(logits[left])) return false;
    return std::isnan(logits[right]) || logits[left] > logits[right];
  });
  return ids;
}

/// out += scale * down(silu(gate x) * up x) of one row.
void add_expert(const ops::ExpertWeight& expert, const float* x, double scale,
                std::vector<double>& out) {
  const auto width = static_cast<size_t>(expert.gate.out_features);
  std::vector<float> gate(width), up(width), result(out.size());
  product(x, 1, expert.gate, gate.data());
  product(x, 1, expert.up, up.data());
  for (size_t col = 0; col < width; ++col)
    gate[col] = static_cast<float>(silu(double{gate[col]}) * double{up[col]});
  product(gate.data(), 1, expert.down, result.data());
  for (size_t col = 0; col < out.size(); ++col) out[col] += scale * double{result[col]};
}

}  // namespace

void router(const ops::RouterArgs& args) {
  product(floats(args.x), args.rows, args.gate, args.logits);
  product(floats(args.x), args.rows, args.shared_gate, args.shared_logit);
  const auto top_k = static_cast<size_t>(args.top_k);
  for (size_t row = 0; row < static_cast<size_t>(args.rows); ++row) {
    const float* logits = args.logits + row * static_cast<size_t>(args.num_experts);
    const auto ids = ranked(logits, args.num_experts);
    const double top = double{logits[ids[0]]};
    double total = 0, selected = 0;
    for (int expert = 0; expert < args.num_experts; ++expert)
      total += std::exp(double{logits[expert]} - top);
    for (size_t slot = 0; slot < top_k; ++slot)
      selected += std::exp(double{logits[ids[slot]]} - top) / total;
    for (size_t slot = 0; slot < top_k; ++slot) {
      const double probability = std::exp(double{logits[ids[slot]]} - top) / total;
      args.ids[row * top_k + slot] = ids[slot];
      args.weights[row * top_k + slot] =
          static_cast<float>(args.normalize ? probability / selected : probability);
    }
  }
}

void experts(const ops::ExpertsArgs& args) {
  const auto hidden = static_cast<size_t>(args.shared.down.out_features);
  const auto top_k = static_cast<size_t>(args.top_k);
  for (size_t row = 0; row < static_cast<size_t>(args.rows); ++row) {
    const float* x = floats(args.x) + row * hidden;
    std::vector<double> sum(hidden, 0.0);
    for (size_t slot = row * top_k; slot < (row + 1) * top_k; ++slot)
      add_expert(args.experts[static_cast<size_t>(args.ids[slot])], x, double{args.weights[slot]},
                 sum);
    add_expert(args.shared, x, sigmoid(double{args.shared_logit[row]}), sum);
    for (size_t col = 0; col < hidden; ++col)
      floats(args.out)[row * hidden + col] = static_cast<float>(sum[col]);
  }
}

}  // namespace tessera::cpu::reference
