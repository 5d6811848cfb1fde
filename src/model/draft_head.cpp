// SPDX-License-Identifier: Apache-2.0
// Gathers rows of the head into one matrix, and quantises heads.
#include "model/draft_head.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "core/parallel.h"

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

constexpr float kLargestF8 = 448;

float value_at(const ops::LinearWeight& weight, size_t index) {
  if (weight.dtype == DType::kBF16)
    return bf16_to_float(static_cast<const uint16_t*>(weight.data)[index]);
  return static_cast<const float*>(weight.data)[index];
}

/// Rows `first` to before `last`, which lie in one row of blocks.
void quantise_rows(const ops::LinearWeight& weight, size_t first, size_t last, float* scales,
                   uint8_t* to) {
  const auto cols = static_cast<size_t>(weight.in_features);
  for (size_t begin = 0; begin < cols; begin += ops::kScaleBlock) {
    const size_t end = std::min(begin + ops::kScaleBlock, cols);
    float largest = 0;
    for (size_t row = first; row < last; ++row)
      for (size_t col = begin; col < end; ++col)
        largest = std::max(largest, std::abs(value_at(weight, row * cols + col)));
    const float scale = largest > 0 ? largest / kLargestF8 : 1.0F;
    scales[begin / ops::kScaleBlock] = scale;
    for (size_t row = first; row < last; ++row)
      for (size_t col = begin; col < end; ++col)
        to[row * cols + col] = float_to_f8e4m3(value_at(weight, row * cols + col) / scale);
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
  weights.draft->own_head = head;
  weights.draft->shortlist.assign(ids.begin(), ids.end());
}

void quantise_draft_head(ModelWeights& weights) {
  assert(weights.draft.has_value());
  ops::LinearWeight& own = weights.draft->own_head;
  const ops::LinearWeight whole = own ? own : weights.lm_head;
  if (whole.dtype == DType::kF8E4M3) return;
  ops::LinearWeight head{.dtype = DType::kF8E4M3,
                         .out_features = whole.out_features,
                         .in_features = whole.in_features};
  const int64_t block_rows = (whole.out_features + ops::kScaleBlock - 1) / ops::kScaleBlock;
  const auto row_scales = static_cast<size_t>(head.scale_cols());
  auto* values = reinterpret_cast<uint8_t*>(weights.copied.emplace_back(head.bytes()).data());
  const size_t num_scales = static_cast<size_t>(block_rows) * row_scales;
  auto* scales =
      reinterpret_cast<float*>(weights.copied.emplace_back(num_scales * sizeof(float)).data());
  head.data = values;
  head.scale = scales;
  parallel_for(block_rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t block = begin; block < end; ++block) {
      const auto first = static_cast<size_t>(block) * ops::kScaleBlock;
      const size_t last =
          std::min(first + ops::kScaleBlock, static_cast<size_t>(whole.out_features));
      quantise_rows(whole, first, last, scales + static_cast<size_t>(block) * row_scales, values);
    }
  });
  own = head;
}

}  // namespace tessera
