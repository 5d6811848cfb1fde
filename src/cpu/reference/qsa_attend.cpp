// SPDX-License-Identifier: Apache-2.0
// Reference of sparse attention: softmax over the tokens of the selected blocks and the open tail.
#include <vector>

#include "core/parallel.h"
#include "cpu/reference/elements.h"
#include "cpu/reference/numerics.h"
#include "cpu/reference/reference_kernels.h"

namespace tessera::cpu::reference {
namespace {

/// Tokens that a row attends to, ascending.
std::vector<int64_t> visible_tokens(const ops::QsaAttendArgs& args, size_t row, int64_t position) {
  const int64_t block = args.shape.block;
  std::vector<int64_t> tokens;
  const int32_t* blocks = args.blocks + row * static_cast<size_t>(args.budget_blocks);
  for (int32_t index = 0; index < args.counts[row]; ++index)
    for (int64_t inner = 0; inner < block; ++inner)
      tokens.push_back(int64_t{blocks[index]} * block + inner);
  for (int64_t token = (position + 1) / block * block; token <= position; ++token)
    tokens.push_back(token);
  return tokens;
}

/// Calls fn(entry index, vector [D]) for the cached vector of each token.
template <class Fn>
void for_each_cached(const ops::PageRef& cache, const ops::RowSpan& span, int kv_head, int head_dim,
                     const std::vector<int64_t>& tokens, Fn&& fn) {
  const auto dim = static_cast<size_t>(head_dim);
  std::vector<float> vector(dim);
  for (size_t entry = 0; entry < tokens.size(); ++entry) {
    const std::byte* page = page_of(cache, span, tokens[entry]);
    const size_t at = (static_cast<size_t>(kv_head) * ops::kPageTokens +
                       static_cast<size_t>(tokens[entry] % ops::kPageTokens)) *
                      dim;
    load_elements(cache.dtype, page, at, vector);
    fn(entry, vector.data());
  }
}

/// In place; a NaN makes every weight NaN.
void softmax(std::vector<double>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double& logit : logits) sum += logit = std::exp(logit - top);
  for (double& logit : logits) logit /= sum;
}

void attend_head(const ops::QsaAttendArgs& args, const ops::RowSpan& span, size_t row, int head,
                 const std::vector<int64_t>& tokens) {
  const ops::QsaShape& shape = args.shape;
  const auto dim = static_cast<size_t>(shape.head_dim);
  const int kv_head = head / (shape.heads / shape.kv_heads);
  const size_t at = row * static_cast<size_t>(shape.heads) + static_cast<size_t>(head);
  std::vector<double> weights(tokens.size());
  for_each_cached(
      args.cache.keys, span, kv_head, shape.head_dim, tokens, [&](size_t entry, const float* key) {
        weights[entry] =
            dot(floats(args.q) + at * dim, key, shape.head_dim) / std::sqrt(shape.head_dim);
      });
  softmax(weights);
  std::vector<double> sum(dim, 0.0);
  for_each_cached(args.cache.values, span, kv_head, shape.head_dim, tokens,
                  [&](size_t entry, const float* value) {
                    for (size_t col = 0; col < dim; ++col)
                      sum[col] += weights[entry] * double{value[col]};
                  });
  const float* gate = floats(args.q_gate) + (2 * at + 1) * dim;
  for (size_t col = 0; col < dim; ++col)
    floats(args.out)[at * dim + col] = static_cast<float>(sum[col] * sigmoid(double{gate[col]}));
}

}  // namespace

void qsa_attend(const ops::QsaAttendArgs& args) {
  for (const ops::RowSpan& span : args.batch.spans) {
    parallel_for(span.num_rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t inner = begin; inner < end; ++inner) {
        const auto row = static_cast<size_t>(span.row_begin + inner);
        const auto tokens = visible_tokens(args, row, span.position + inner);
        for (int head = 0; head < args.shape.heads; ++head)
          attend_head(args, span, row, head, tokens);
      }
    });
  }
}

}  // namespace tessera::cpu::reference
