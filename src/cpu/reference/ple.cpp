// SPDX-License-Identifier: Apache-2.0
// Reference of the hashed n-gram memory: table gather and gated dilated convolution.
#include <vector>

#include "cpu/reference/elements.h"
#include "cpu/reference/history.h"
#include "cpu/reference/numerics.h"
#include "cpu/reference/reference_kernels.h"

namespace tessera::cpu::reference {
namespace {

constexpr double kMinScore = 1e-6;  // floor under the square root of the gate

double gate_of(const float* key, const float* query, int hidden) {
  const double score = dot(key, query, hidden) / std::sqrt(hidden);
  const double root = std::sqrt(std::max(std::abs(score), kMinScore));
  return sigmoid(score > 0 ? root : score < 0 ? -root : score);
}

/// v = gate * V for every branch of one row.
void gated_value(const ops::PleMixArgs& args, size_t row, float* out) {
  const auto hidden = static_cast<size_t>(args.hidden);
  const size_t wide = static_cast<size_t>(args.branches) * hidden;
  std::vector<float> key(wide), query(wide);
  grouped_rms_norm(floats(args.key) + row * wide, args.norm_key, args.branches, args.hidden,
                   double{args.eps}, key.data());
  grouped_rms_norm(floats(args.wide) + row * wide, args.norm_query, args.branches, args.hidden,
                   double{args.eps}, query.data());
  const float* value = floats(args.value) + row * hidden;
  for (size_t start = 0; start < wide; start += hidden) {
    const double gate = gate_of(&key[start], &query[start], args.hidden);
    for (size_t col = 0; col < hidden; ++col)
      out[start + col] = static_cast<float>(gate * double{value[col]});
  }
}

/// v + silu(dilated convolution of x), added to the residual.
void add_delta(const ops::PleMixArgs& args, const History<float>& inputs, const float* value,
               size_t row, int64_t position) {
  const size_t wide = static_cast<size_t>(args.branches) * static_cast<size_t>(args.hidden);
  const auto taps = static_cast<size_t>(args.conv_kernel);
  for (size_t col = 0; col < wide; ++col) {
    double sum = 0;
    for (size_t tap = 0; tap < taps; ++tap) {
      const auto lag = static_cast<int64_t>(taps - 1 - tap) * args.dilation;
      const float* x = inputs.at(position - lag);
      if (x != nullptr) sum += double{x[col]} * double{args.conv_weight[col * taps + tap]};
    }
    const double delta = double{value[col]} + silu(sum);
    floats(args.wide)[row * wide + col] =
        static_cast<float>(double{floats(args.wide)[row * wide + col]} + delta);
    if (args.delta != nullptr) floats(args.delta)[row * wide + col] = static_cast<float>(delta);
  }
}

void run_span(const ops::PleMixArgs& args, const ops::RowSpan& span) {
  const size_t wide = static_cast<size_t>(args.branches) * static_cast<size_t>(args.hidden);
  const auto rows = static_cast<size_t>(span.num_rows);
  const auto first = static_cast<size_t>(span.row_begin);
  std::vector<float> value(rows * wide), normed(rows * wide);
  for (size_t row = 0; row < rows; ++row) {
    gated_value(args, first + row, &value[row * wide]);
    grouped_rms_norm(&value[row * wide], args.norm_conv, args.branches, args.hidden,
                     double{args.eps}, &normed[row * wide]);
  }
  const History<float> inputs(span, args.conv_ring, normed.data(), wide, wide);
  for (size_t row = 0; row < rows; ++row)
    add_delta(args, inputs, &value[row * wide], first + row,
              span.position + static_cast<int64_t>(row));
  inputs.store();
}

}  // namespace

void ngram_gather(const ops::NgramGatherArgs& args) {
  const ops::NgramTable& table = *args.table;
  const auto width = static_cast<size_t>(table.row_dim);
  const auto count = static_cast<size_t>(args.rows) * static_cast<size_t>(args.heads);
  const float scale = table.dtype == DType::kF8E4M3 ? table.scale : 1.0F;
  for (size_t entry = 0; entry < count; ++entry) {
    const std::span<float> out(floats(args.out) + entry * width, width);
    load_elements(table.dtype, table.row(args.table_rows[entry]), 0, out);
    for (float& value : out) value *= scale;
  }
}

void ple_mix(const ops::PleMixArgs& args) {
  for (const ops::RowSpan& span : args.batch.spans)
    if (span.num_rows > 0) run_span(args, span);
}

}  // namespace tessera::cpu::reference
