// SPDX-License-Identifier: Apache-2.0
// Reference of the draft layer's input: the two norms.
#include <algorithm>
#include <vector>

#include "cpu/reference/elements.h"
#include "cpu/reference/numerics.h"
#include "cpu/reference/reference_kernels.h"

namespace tessera::cpu::reference {

void draft_input(const ops::DraftInputArgs& args) {
  const auto hidden = static_cast<size_t>(args.table.in_features);
  const auto branches = static_cast<size_t>(args.branches);
  const size_t wide = branches * hidden;
  std::vector<double> exact(hidden);
  std::vector<float> token(hidden);
  for (size_t row = 0; row < static_cast<size_t>(args.rows); ++row) {
    decode_weight_row(args.table, args.ids[row], exact);
    std::transform(exact.begin(), exact.end(), token.begin(),
                   [](double value) { return static_cast<float>(value); });
    rms_norm(token.data(), args.norm_embedding, args.table.in_features, double{args.eps},
             floats(args.embedded) + row * hidden);
    rms_norm(floats(args.wide) + static_cast<size_t>(args.wide_rows[row]) * wide, args.norm_hidden,
             static_cast<int>(wide), double{args.eps}, floats(args.normed) + row * wide);
    std::fill_n(args.inject + row * branches, branches, 0.0F);
  }
}

}  // namespace tessera::cpu::reference
