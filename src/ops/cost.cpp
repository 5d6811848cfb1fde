// SPDX-License-Identifier: Apache-2.0
// Least bytes and flops of every op: each weight, activation and state entry once.
#include "ops/cost.h"

#include <algorithm>
#include <set>

#include "ops/ops.h"

namespace tessera::ops {
namespace {

constexpr double kFloat = sizeof(float);
constexpr double kInt = sizeof(int32_t);
constexpr double kMulAdd = 2;
constexpr double kAxes = 3;

int scale_rows(const LinearWeight& weight) {
  return (weight.out_features + kScaleBlock - 1) / kScaleBlock;
}

double weight_bytes(const LinearWeight& weight) {
  if (!weight) return 0;
  double bytes = static_cast<double>(weight.bytes());
  if (weight.scale != nullptr)
    bytes += static_cast<double>(sizeof(*weight.scale)) * weight.scale_cols() * scale_rows(weight);
  return bytes;
}

double product_flops(const LinearWeight& weight, double rows) {
  return weight ? kMulAdd * rows * weight.in_features * weight.out_features : 0;
}

double expert_bytes(const ExpertWeight& expert) {
  return weight_bytes(expert.gate) + weight_bytes(expert.up) + weight_bytes(expert.down);
}

double expert_flops(const ExpertWeight& expert, double rows) {
  return product_flops(expert.gate, rows) + product_flops(expert.up, rows) +
         product_flops(expert.down, rows);
}

/// Ring entries that a span reads: those before its first row.
double ring_reads(const RowSpan& span, const RingRef& ring) {
  return span.num_rows == 0 ? 0 : static_cast<double>(std::min<int64_t>(ring.reach, span.position));
}

/// Ring entries that a span must leave behind.
double ring_writes(const RowSpan& span, const RingRef& ring) {
  return std::min(span.num_rows, ring.reach);
}

/// Bytes of the ring entries, read and written.
void add_ring(Cost& total, const RowBatch& batch, const RingRef& ring, double entry_bytes) {
  for (const RowSpan& span : batch.spans) {
    total.bytes_read += ring_reads(span, ring) * entry_bytes;
    total.bytes_written += ring_writes(span, ring) * entry_bytes;
  }
}

/// Distinct tokens of the selected blocks and tails of a span.
double distinct_tokens(const QsaAttendArgs& args, const RowSpan& span) {
  const int64_t block = args.shape.block;
  std::set<int64_t> blocks, open_tokens;
  for (int inner = 0; inner < span.num_rows; ++inner) {
    const auto row = static_cast<size_t>(span.row_begin + inner);
    const int32_t* list = args.blocks + row * static_cast<size_t>(args.budget_blocks);
    blocks.insert(list, list + args.counts[row]);
    const int64_t end = span.position + inner + 1;
    for (int64_t token = end / block * block; token < end; ++token) open_tokens.insert(token);
  }
  const auto outside = std::count_if(open_tokens.begin(), open_tokens.end(), [&](int64_t token) {
    return !blocks.contains(token / block);
  });
  return static_cast<double>(static_cast<int64_t>(blocks.size()) * block + outside);
}

/// Tokens over which a row's softmax runs.
double attended_tokens(const QsaAttendArgs& args, const RowSpan& span, int inner) {
  const int64_t block = args.shape.block;
  const int64_t tail = (span.position + inner + 1) % block;
  return static_cast<double>(args.counts[span.row_begin + inner] * block + tail);
}

}  // namespace

Cost cost(const EmbedArgs& args) {
  const double rows = args.rows;
  return {.bytes_read = rows * (static_cast<double>(args.table.row_bytes()) + kInt),
          .bytes_written = rows * args.branches * args.table.in_features * kFloat};
}

Cost cost(const DraftInputArgs& args) {
  const double rows = args.rows;
  const double hidden = args.table.in_features;
  const double wide = hidden * args.branches;
  if (args.rows == 0) return {};
  return {.bytes_read =
              rows * (static_cast<double>(args.table.row_bytes()) + 2 * kInt + wide * kFloat) +
              (hidden + wide) * kFloat,
          .bytes_written = rows * (hidden + wide + args.branches) * kFloat,
          .flops = 2 * kMulAdd * rows * (hidden + wide)};
}

Cost cost(const LinearArgs& args) {
  Cost total;
  const double rows = args.rows;
  if (args.rows == 0 || args.parts.empty()) return total;
  total.bytes_read = rows * args.parts[0].weight.in_features * kFloat;
  for (const LinearPart& part : args.parts) {
    total.bytes_read += weight_bytes(part.weight);
    total.bytes_written += rows * part.weight.out_features * kFloat;
    total.flops += product_flops(part.weight, rows);
  }
  return total;
}

Cost cost(const MixerArgs& args) {
  if (args.rows == 0) return {};
  const MixerWeights& weights = args.weights;
  const double rows = args.rows;
  const double wide = static_cast<double>(args.branches) * args.hidden;
  const double injected = args.inject != nullptr ? args.branches : 0;
  Cost total;
  total.bytes_read = rows * wide * kFloat + wide * kFloat + weight_bytes(weights.down) +
                     weight_bytes(weights.up) + weight_bytes(weights.inject);
  total.bytes_written = rows * (args.hidden + injected) * kFloat;
  total.flops = product_flops(weights.down, rows) + product_flops(weights.up, rows) +
                product_flops(weights.inject, rows);
  return total;
}

Cost cost(const CombineArgs& args) {
  const double rows = args.rows;
  const double wide = static_cast<double>(args.branches) * args.hidden;
  return {.bytes_read = rows * (wide + args.hidden + args.branches) * kFloat,
          .bytes_written = rows * wide * kFloat,
          .flops = kMulAdd * rows * wide};
}

Cost cost(const GdnArgs& args) {
  constexpr double kFlopsPerCell = 7;  // decay 1; retrieve, update and read out 2 each
  const GdnShape& shape = args.shape;
  const double rows = args.batch.num_rows;
  const double channels = shape.channels();
  const double values = static_cast<double>(shape.value_heads) * shape.value_dim;
  const double cells = values * shape.key_dim;
  Cost total;
  total.bytes_read = rows * (channels + values + 2.0 * shape.value_heads) * kFloat;
  total.bytes_written = rows * values * kFloat;
  total.flops = rows * (kMulAdd * channels * shape.conv_kernel + kFlopsPerCell * cells);
  if (args.batch.num_rows > 0)
    total.bytes_read +=
        (channels * shape.conv_kernel + 2.0 * shape.value_heads + shape.value_dim) * kFloat;
  for (const RowSpan& span : args.batch.spans) {
    if (span.num_rows == 0) continue;
    total.bytes_read += cells * kFloat;
    total.bytes_written += cells * kFloat;
  }
  add_ring(total, args.batch, args.conv_ring, channels * kFloat);
  return total;
}

Cost cost(const NgramGatherArgs& args) {
  const double entries = static_cast<double>(args.rows) * args.heads;
  const double width = args.table->row_dim;
  return {.bytes_read = entries * (width * static_cast<double>(dtype_bytes(args.table->dtype)) +
                                   static_cast<double>(sizeof(int64_t))),
          .bytes_written = entries * width * kFloat};
}

Cost cost(const PleMixArgs& args) {
  constexpr double kNorms = 3;
  constexpr double kWideFlops = 2 * (kNorms + 2);  // three means, one dot, one gated add
  const double rows = args.batch.num_rows;
  const double wide = static_cast<double>(args.branches) * args.hidden;
  Cost total;
  total.bytes_read = rows * (2 * wide + args.hidden) * kFloat;
  total.bytes_written = rows * wide * (args.delta != nullptr ? 2 : 1) * kFloat;
  total.flops = rows * wide * (kWideFlops + kMulAdd * args.conv_kernel);
  if (args.batch.num_rows > 0) total.bytes_read += wide * (kNorms + args.conv_kernel) * kFloat;
  add_ring(total, args.batch, args.conv_ring, wide * kFloat);
  return total;
}

Cost cost(const QsaFrontArgs& args) {
  constexpr double kRotateFlops = 3;  // per rotated element: two products, one sum
  const QsaShape& shape = args.shape;
  const double rows = args.batch.num_rows;
  const double queries = static_cast<double>(shape.heads) * shape.head_dim;
  const double keys = static_cast<double>(shape.kv_heads) * shape.head_dim;
  const double index_queries = static_cast<double>(shape.index_heads) * shape.index_dim;
  const double rotated_heads = shape.heads + shape.kv_heads + shape.index_heads;
  Cost total;
  total.bytes_read =
      rows * ((queries + 2 * keys + index_queries + shape.index_dim) * kFloat + kAxes * kInt);
  total.bytes_written = rows * ((queries + index_queries) * kFloat +
                                keys * static_cast<double>(dtype_bytes(args.cache.keys.dtype)) +
                                keys * static_cast<double>(dtype_bytes(args.cache.values.dtype)));
  total.flops = rows * (kMulAdd * (queries + keys + index_queries) +
                        kRotateFlops * rotated_heads * shape.rotary_dim);
  for (const RowSpan& span : args.batch.spans) {
    const int64_t end = span.position + span.num_rows;
    const int64_t blocks = end / shape.block - span.position / shape.block;
    const auto completed = static_cast<double>(blocks);
    total.bytes_written +=
        completed * shape.index_dim * static_cast<double>(dtype_bytes(args.cache.index_keys.dtype));
    total.flops += completed * shape.index_dim * (shape.block + kMulAdd);
  }
  add_ring(total, args.batch, args.cache.raw_keys, shape.index_dim * kFloat);
  add_ring(total, args.batch, args.cache.positions, kAxes * kInt);
  return total;
}

Cost cost(const QsaSelectArgs& args) {
  const QsaShape& shape = args.shape;
  const double index_queries = static_cast<double>(shape.index_heads) * shape.index_dim;
  const double key_bytes =
      shape.index_dim * static_cast<double>(dtype_bytes(args.cache.index_keys.dtype));
  Cost total;
  for (const RowSpan& span : args.batch.spans) {
    double scored = 0;  // blocks that the longest scored row of the span reads
    for (int inner = 0; inner < span.num_rows; ++inner) {
      const int64_t visible = (span.position + inner + 1) / shape.block;
      const auto blocks = static_cast<double>(visible);
      total.bytes_written += (std::min<double>(blocks, args.budget_blocks) + 1) * kInt;
      if (visible <= args.budget_blocks) continue;
      scored = blocks;
      total.bytes_read += index_queries * kFloat;
      total.flops += kMulAdd * index_queries * blocks;
    }
    total.bytes_read += scored * key_bytes;
  }
  return total;
}

Cost cost(const QsaExtendArgs& args) {
  // Lists as long as they may be: how long they are lies in the backend's memory.
  Cost total;
  total.bytes_read = args.batch.num_rows * (args.from_stride + 1.0) * kInt;
  total.bytes_written = args.batch.num_rows * (args.from_stride + 2.0) * kInt;
  return total;
}

Cost cost(const QsaAttendArgs& args) {
  constexpr double kProducts = 2;  // q k^T and weights v
  const QsaShape& shape = args.shape;
  const double queries = static_cast<double>(shape.heads) * shape.head_dim;
  const double token_bytes = static_cast<double>(shape.kv_heads) * shape.head_dim *
                             static_cast<double>(dtype_bytes(args.cache.keys.dtype) +
                                                 dtype_bytes(args.cache.values.dtype));
  Cost total;
  total.bytes_written = args.batch.num_rows * queries * kFloat;
  total.bytes_read = args.batch.num_rows * 2.0 * queries * kFloat;
  for (const RowSpan& span : args.batch.spans) {
    total.bytes_read += distinct_tokens(args, span) * token_bytes;
    for (int inner = 0; inner < span.num_rows; ++inner) {
      total.bytes_read += (args.counts[span.row_begin + inner] + 1) * kInt;
      total.flops += kProducts * kMulAdd * queries * attended_tokens(args, span, inner);
    }
  }
  return total;
}

Cost cost(const RouterArgs& args) {
  constexpr double kFlopsPerExpert = 3;  // shift, exponential, sum
  const double rows = args.rows;
  if (args.rows == 0) return {};
  return {.bytes_read = weight_bytes(args.gate) + weight_bytes(args.shared_gate) +
                        rows * args.gate.in_features * kFloat,
          .bytes_written = rows * ((args.num_experts + 1) * kFloat + args.top_k * (kInt + kFloat)),
          .flops = product_flops(args.gate, rows) + product_flops(args.shared_gate, rows) +
                   rows * args.num_experts * kFlopsPerExpert};
}

Cost cost(const ExpertsArgs& args) {
  const double rows = args.rows;
  if (args.rows == 0) return {};
  const double hidden = args.shared.down.out_features;
  const std::set<int32_t> used(args.ids, args.ids + static_cast<ptrdiff_t>(args.rows) * args.top_k);
  Cost total;
  total.bytes_read = rows * (hidden + args.top_k * 2 + 1) * kFloat + expert_bytes(args.shared);
  for (const int32_t expert : used)
    total.bytes_read += expert_bytes(args.experts[static_cast<size_t>(expert)]);
  total.bytes_written = rows * hidden * kFloat;
  total.flops = expert_flops(args.shared, rows);
  if (!args.experts.empty()) total.flops += expert_flops(args.experts[0], rows * args.top_k);
  if (args.combine != nullptr) total += cost(*args.combine);
  return total;
}

Cost cost(const NgramIdsArgs& args) {
  const double rows = args.batch.num_rows;
  constexpr double kId = sizeof(int64_t);
  return {.bytes_read = rows * kInt, .bytes_written = rows * args.hash->heads() * kId};
}

Cost cost(const FinishArgs& args) {
  const double moved = args.num_logit_rows + static_cast<double>(args.batch.spans.size());
  return {.bytes_read = moved * args.width * kFloat, .bytes_written = moved * args.width * kFloat};
}

Cost cost(const SampleArgs& args) {
  return {.bytes_read = static_cast<double>(args.rows.size()) * args.vocab * kFloat};
}

}  // namespace tessera::ops
