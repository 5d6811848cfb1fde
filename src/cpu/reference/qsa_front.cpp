// SPDX-License-Identifier: Apache-2.0
// Reference of the QSA front: norms, RoPE, cache writes and the pooled keys of completed blocks.
#include <vector>

#include "cpu/reference/elements.h"
#include "cpu/reference/history.h"
#include "cpu/reference/numerics.h"
#include "cpu/reference/reference_kernels.h"

namespace tessera::cpu::reference {
namespace {

constexpr size_t kAxes = 3;  // t, h, w

/// Rotates the first 2 * half values in place (half-split form).
void rotate(const ops::RopeTable& rope, const int32_t* position, int half, float* x) {
  for (int pair = 0; pair < half; ++pair) {
    const double angle = double{rope.inv_freq[pair]} * position[rope.axis[pair]];
    const double cosine = std::cos(angle) * double{rope.attention_scale};
    const double sine = std::sin(angle) * double{rope.attention_scale};
    const double low = double{x[pair]}, high = double{x[pair + half]};
    x[pair] = static_cast<float>(low * cosine - high * sine);
    x[pair + half] = static_cast<float>(high * cosine + low * sine);
  }
}

void norm_and_rotate(const ops::QsaFrontArgs& args, const float* x, const float* weight, int count,
                     const int32_t* position, float* out) {
  rms_norm(x, weight, count, double{args.eps}, out);
  rotate(args.rope, position, args.shape.rotary_dim / 2, out);
}

void write_queries(const ops::QsaFrontArgs& args, size_t row) {
  const ops::QsaShape& shape = args.shape;
  const auto dim = static_cast<size_t>(shape.head_dim);
  const auto index_dim = static_cast<size_t>(shape.index_dim);
  const int32_t* position = args.positions + row * kAxes;
  for (int head = 0; head < shape.heads; ++head) {
    const size_t at = row * static_cast<size_t>(shape.heads) + static_cast<size_t>(head);
    norm_and_rotate(args, floats(args.q_gate) + at * 2 * dim, args.q_norm, shape.head_dim, position,
                    floats(args.q) + at * dim);
  }
  const size_t packed_row = row * static_cast<size_t>(shape.index_heads + 1);
  for (int head = 0; head < shape.index_heads; ++head) {
    const size_t at = row * static_cast<size_t>(shape.index_heads) + static_cast<size_t>(head);
    norm_and_rotate(
        args, floats(args.index_qk) + (packed_row + static_cast<size_t>(head)) * index_dim,
        args.index_q_norm, shape.index_dim, position, floats(args.index_q) + at * index_dim);
  }
}

void write_keys_values(const ops::QsaFrontArgs& args, const ops::RowSpan& span, size_t row,
                       int64_t token) {
  const ops::QsaShape& shape = args.shape;
  const auto dim = static_cast<size_t>(shape.head_dim);
  std::byte* keys = page_of(args.cache.keys, span, token);
  std::byte* values = page_of(args.cache.values, span, token);
  std::vector<float> key(dim);
  for (int head = 0; head < shape.kv_heads; ++head) {
    const size_t at = (row * static_cast<size_t>(shape.kv_heads) + static_cast<size_t>(head)) * dim;
    norm_and_rotate(args, floats(args.k) + at, args.k_norm, shape.head_dim,
                    args.positions + row * kAxes, key.data());
    const size_t cell = (static_cast<size_t>(head) * ops::kPageTokens +
                         static_cast<size_t>(token % ops::kPageTokens)) *
                        dim;
    for (size_t col = 0; col < dim; ++col) {
      store_element(args.cache.keys.dtype, keys, cell + col, key[col]);
      store_element(args.cache.values.dtype, values, cell + col, floats(args.v)[at + col]);
    }
  }
}

/// Pooled key of the block whose last token is `last`.
void write_index_key(const ops::QsaFrontArgs& args, const ops::RowSpan& span,
                     const History<float>& raw, const History<int32_t>& positions, int64_t last) {
  const ops::QsaShape& shape = args.shape;
  const auto dim = static_cast<size_t>(shape.index_dim);
  const int64_t first = last + 1 - shape.block;
  std::vector<double> sum(dim, 0.0);
  for (int64_t token = first; token <= last; ++token)
    for (size_t col = 0; col < dim; ++col) sum[col] += double{raw.at(token)[col]};
  std::vector<float> key(dim);
  for (size_t col = 0; col < dim; ++col) key[col] = static_cast<float>(sum[col] / shape.block);
  norm_and_rotate(args, key.data(), args.index_k_norm, shape.index_dim, positions.at(first),
                  key.data());
  const auto block = static_cast<size_t>(first % ops::kPageTokens / shape.block);
  std::byte* page = page_of(args.cache.index_keys, span, first);
  for (size_t col = 0; col < dim; ++col)
    store_element(args.cache.index_keys.dtype, page, block * dim + col, key[col]);
}

void run_span(const ops::QsaFrontArgs& args, const ops::RowSpan& span) {
  const auto first_row = static_cast<size_t>(span.row_begin);
  const auto index_dim = static_cast<size_t>(args.shape.index_dim);
  const auto index_heads = static_cast<size_t>(args.shape.index_heads);
  const size_t packed = (index_heads + 1) * index_dim;
  const History<float> raw(span, args.cache.raw_keys,
                           floats(args.index_qk) + first_row * packed + index_heads * index_dim,
                           packed, index_dim);
  const History<int32_t> positions(span, args.cache.positions, args.positions + first_row * kAxes,
                                   kAxes, kAxes);
  for (int row = 0; row < span.num_rows; ++row) {
    const int64_t token = span.position + row;
    if (args.q_gate != nullptr) write_queries(args, first_row + static_cast<size_t>(row));
    write_keys_values(args, span, first_row + static_cast<size_t>(row), token);
    if ((token + 1) % args.shape.block == 0) write_index_key(args, span, raw, positions, token);
  }
  raw.store();
  positions.store();
}

}  // namespace

void qsa_front(const ops::QsaFrontArgs& args) {
  for (const ops::RowSpan& span : args.batch.spans)
    if (span.num_rows > 0) run_span(args, span);
}

}  // namespace tessera::cpu::reference
