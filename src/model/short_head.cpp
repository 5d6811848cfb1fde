// SPDX-License-Identifier: Apache-2.0
// Gathers rows of the head into one matrix.
#include "model/short_head.h"

#include <cassert>
#include <cstring>

namespace tessera {
namespace {

/// Row `row` of an FP8 weight as BF16.
void widen_row(const ops::LinearWeight& weight, int row, std::byte* to) {
  const auto cols = static_cast<size_t>(weight.in_features);
  const auto* from = static_cast<const uint8_t*>(weight.data) + static_cast<size_t>(row) * cols;
  const float* scales =
      weight.scale + static_cast<ptrdiff_t>(row / ops::kScaleBlock) * weight.scale_cols();
  for (size_t col = 0; col < cols; ++col) {
    const uint16_t value =
        float_to_bf16(f8e4m3_to_float(from[col]) * scales[col / ops::kScaleBlock]);
    std::memcpy(to + col * sizeof value, &value, sizeof value);
  }
}

}  // namespace

void cut_draft_head(ModelWeights& weights, std::span<const int32_t> ids) {
  assert(weights.draft.has_value() && !ids.empty());
  const ops::LinearWeight& whole = weights.lm_head;
  const bool is_fp8 = whole.dtype == DType::kF8E4M3;
  ops::LinearWeight head{.dtype = is_fp8 ? DType::kBF16 : whole.dtype,
                         .out_features = static_cast<int>(ids.size()),
                         .in_features = whole.in_features};
  std::vector<std::byte>& rows = weights.copied.emplace_back(head.bytes());
  std::byte* to = rows.data();
  for (const int32_t id : ids) {
    if (is_fp8)
      widen_row(whole, id, to);
    else
      std::memcpy(
          to,
          static_cast<const std::byte*>(whole.data) + static_cast<size_t>(id) * whole.row_bytes(),
          whole.row_bytes());
    to += head.row_bytes();
  }
  head.data = rows.data();
  weights.draft->short_head = head;
  weights.draft->shortlist.assign(ids.begin(), ids.end());
}

}  // namespace tessera
