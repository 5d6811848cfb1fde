// SPDX-License-Identifier: Apache-2.0
// Copies of what goes into the index scores, and the scores.
#include "eval/index_inputs.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

namespace tessera {
namespace {

/// How much the raw keys `first` .. `first + count - 1`, `stride` apart, cancel in their mean.
double spread_of(const float* first, int count, size_t stride, size_t dim) {
  std::vector<double> sum(dim, 0.0);
  double squares = 0;
  for (int token = 0; token < count; ++token) {
    const std::span<const float> raw(first + static_cast<size_t>(token) * stride, dim);
    for (size_t col = 0; col < dim; ++col) sum[col] += double{raw[col]};
    squares += dot(raw, raw);
  }
  return std::sqrt(squares / std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
}

}  // namespace

double dot(std::span<const float> left, std::span<const float> right) {
  return std::inner_product(left.begin(), left.end(), right.begin(), 0.0, std::plus<>(),
                            [](float a, float b) { return double{a} * double{b}; });
}

std::span<const float> IndexInputs::query(int row, int head) const {
  const auto width = static_cast<size_t>(dim);
  const size_t at =
      static_cast<size_t>(row) * static_cast<size_t>(heads) + static_cast<size_t>(head);
  return std::span(queries).subspan(at * width, width);
}

std::span<const float> IndexInputs::key(int block) const {
  const auto width = static_cast<size_t>(dim);
  return std::span(keys).subspan(static_cast<size_t>(block) * width, width);
}

double IndexInputs::score(int row, int block) const {
  double sum = 0;
  for (int head = 0; head < heads; ++head) {
    const double product = dot(query(row, head), key(block));
    if (!(product <= 0)) sum += product;  // a NaN product stays NaN
  }
  return sum / std::sqrt(dim);
}

void IndexInputsOps::qsa_front(const ops::QsaFrontArgs& args) {
  inner_.qsa_front(args);
  const auto dim = static_cast<size_t>(args.shape.index_dim);
  const auto heads = static_cast<size_t>(args.shape.index_heads);
  const size_t stride = (heads + 1) * dim;
  const float* raw_keys = static_cast<const float*>(args.index_qk) + heads * dim;
  IndexInputs inputs{.heads = args.shape.index_heads, .dim = args.shape.index_dim};
  const int block = args.shape.block;
  for (int first = 0; first + block <= args.batch.num_rows; first += block)
    inputs.spread.push_back(
        spread_of(raw_keys + static_cast<size_t>(first) * stride, block, stride, dim));
  layers_.push_back(std::move(inputs));
}

void IndexInputsOps::qsa_select(const ops::QsaSelectArgs& args) {
  inner_.qsa_select(args);
  IndexInputs& inputs = layers_.back();
  const auto dim = static_cast<size_t>(inputs.dim);
  const auto* queries = static_cast<const float*>(args.index_q);
  inputs.queries.assign(queries, queries + static_cast<size_t>(args.batch.num_rows) *
                                               static_cast<size_t>(inputs.heads) * dim);
  const size_t blocks = inputs.spread.size();
  const auto per_page = static_cast<size_t>(args.shape.blocks_per_page());
  inputs.keys.resize(blocks * dim);
  for (size_t block = 0; block < blocks; ++block) {
    const int32_t page = args.batch.spans.front().pages[block / per_page];
    std::memcpy(inputs.keys.data() + block * dim,
                args.cache.index_keys.page(page) + block % per_page * dim * sizeof(float),
                dim * sizeof(float));
  }
}

}  // namespace tessera
