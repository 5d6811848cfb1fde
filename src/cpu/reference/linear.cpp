// SPDX-License-Identifier: Apache-2.0
// Reference of embed and linear.
#include "cpu/reference/elements.h"
#include "cpu/reference/reference_kernels.h"

namespace tessera::cpu::reference {

void embed(const ops::EmbedArgs& args) {
  const auto hidden = static_cast<size_t>(args.table.in_features);
  std::vector<double> values(hidden);
  float* out = floats(args.wide);
  for (int row = 0; row < args.rows; ++row) {
    decode_weight_row(args.table, args.ids[row], values);
    for (int branch = 0; branch < args.branches; ++branch)
      for (const double value : values) *out++ = static_cast<float>(value);
  }
}

void linear(const ops::LinearArgs& args) {
  for (const ops::LinearPart& part : args.parts)
    product(floats(args.x), args.rows, part.weight, floats(part.y));
}

}  // namespace tessera::cpu::reference
