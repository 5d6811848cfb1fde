// SPDX-License-Identifier: Apache-2.0
// Reference of the Gated Residual: mixer and combine.
#include <vector>

#include "cpu/reference/elements.h"
#include "cpu/reference/numerics.h"
#include "cpu/reference/reference_kernels.h"

namespace tessera::cpu::reference {

void mixer(const ops::MixerArgs& args) {
  const auto rows = static_cast<size_t>(args.rows);
  const auto hidden = static_cast<size_t>(args.hidden);
  const size_t wide = static_cast<size_t>(args.branches) * hidden;
  const auto rank = static_cast<size_t>(args.weights.down.out_features);
  std::vector<float> normed(rows * wide);
  for (size_t row = 0; row < rows; ++row)
    grouped_rms_norm(floats(args.wide) + row * wide, args.weights.norm, args.branches, args.hidden,
                     double{args.eps}, &normed[row * wide]);

  std::vector<float> low(rows * rank);
  product(normed.data(), args.rows, args.weights.down, low.data());
  for (float& value : low) value = static_cast<float>(silu(double{value} / args.branches));
  std::vector<float> gate(rows * wide);
  product(low.data(), args.rows, args.weights.up, gate.data());

  for (size_t row = 0; row < rows; ++row) {
    for (size_t col = 0; col < hidden; ++col) {
      double sum = 0;
      for (size_t at = row * wide + col; at < (row + 1) * wide; at += hidden)
        sum += sigmoid(double{gate[at]}) * double{normed[at]};
      floats(args.mixed)[row * hidden + col] = static_cast<float>(sum / args.branches);
    }
  }
  if (args.inject == nullptr) return;
  product(normed.data(), args.rows, args.weights.inject, args.inject);
  for (size_t index = 0; index < rows * static_cast<size_t>(args.branches); ++index)
    args.inject[index] = static_cast<float>(double{args.inject[index]} / args.branches);
}

void combine(const ops::CombineArgs& args) {
  const auto hidden = static_cast<size_t>(args.hidden);
  const auto branches = static_cast<size_t>(args.branches);
  for (size_t row = 0; row < static_cast<size_t>(args.rows); ++row) {
    const float* out = floats(args.out) + row * hidden;
    for (size_t branch = 0; branch < branches; ++branch) {
      const double weight = 2.0 * sigmoid(double{args.inject[row * branches + branch]});
      float* wide = floats(args.wide) + (row * branches + branch) * hidden;
      for (size_t col = 0; col < hidden; ++col)
        wide[col] = static_cast<float>(double{wide[col]} + weight * double{out[col]});
    }
  }
}

}  // namespace tessera::cpu::reference
