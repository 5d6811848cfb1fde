// SPDX-License-Identifier: Apache-2.0
// QSA front of any geometry: one warp per head, lanes stride over its dims.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/bf16.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/qsa_front/qsa_front_plan.h"
#include "cuda/qsa_front/ring_rule.cuh"
#include "cuda/qsa_front/rope.cuh"

namespace tessera::cuda::device {

/// RMS1 and RoPE of a head: load(col) gives its values, store(col, x) takes the results.
template <class Load, class Store>
__device__ __forceinline__ void norm_and_rotate_any(const ops::QsaFrontArgs& args, int dim,
                                                    const float* weight, const int32_t* position,
                                                    const Load& load, const Store& store) {
  float squares = 0;
  for (int col = lane_id(); col < dim; col += kWarp) {
    const float x = load(col);
    squares += x * x;
  }
  const float factor = rsqrtf(warp_sum(squares) / static_cast<float>(dim) + args.eps);
  const auto normed = [&](int col) { return load(col) * (factor * (1.0F + weight[col])); };
  const int half = args.shape.rotary_dim / 2;
  for (int col = lane_id(); col < dim; col += kWarp) {
    float x = normed(col);
    if (col < 2 * half) {
      const bool low = col < half;
      const int pair = low ? col : col - half;
      const float partner = normed(low ? col + half : col - half);
      const Angle angle = rope_angle(args.rope.inv_freq[pair], position[args.rope.axis[pair]],
                                     args.rope.attention_scale);
      x = x * angle.cosine + (low ? -partner : partner) * angle.sine;
    }
    store(col, x);
  }
}

struct AnyFrontRow {
  const ops::QsaFrontArgs& args;
  const ops::RowSpan& span;
  int64_t row;
  int64_t token;

  __device__ const int32_t* position() const { return args.positions + row * kAxes; }

  __device__ void query(int head) const {
    const int dim = args.shape.head_dim;
    const int64_t at = row * args.shape.heads + head;
    const Bf16* x = static_cast<const Bf16*>(args.q_gate) + at * 2 * dim;
    Bf16* out = static_cast<Bf16*>(args.q) + at * dim;
    norm_and_rotate_any(
        args, dim, args.q_norm, position(), [=](int col) { return to_float(x[col]); },
        [=](int col, float value) { out[col] = from_float<Bf16>(value); });
  }

  __device__ size_t cell(int head) const {
    return (static_cast<size_t>(head) * ops::kPageTokens +
            static_cast<size_t>(token % ops::kPageTokens)) *
           static_cast<size_t>(args.shape.head_dim);
  }

  __device__ void key(int head) const {
    const int dim = args.shape.head_dim;
    const Bf16* x = static_cast<const Bf16*>(args.k) + (row * args.shape.kv_heads + head) * dim;
    const DType dtype = args.cache.keys.dtype;
    std::byte* page = page_of(args.cache.keys, span.pages, token);
    const size_t start = cell(head);
    norm_and_rotate_any(
        args, dim, args.k_norm, position(), [=](int col) { return to_float(x[col]); },
        [=](int col, float value) {
          store_element(dtype, page, start + static_cast<size_t>(col), value);
        });
  }

  __device__ void value(int head) const {
    const int dim = args.shape.head_dim;
    const Bf16* x = static_cast<const Bf16*>(args.v) + (row * args.shape.kv_heads + head) * dim;
    std::byte* page = page_of(args.cache.values, span.pages, token);
    for (int col = lane_id(); col < dim; col += kWarp)
      store_element(args.cache.values.dtype, page, cell(head) + static_cast<size_t>(col),
                    to_float(x[col]));
  }

  __device__ const Bf16* index_vector(int64_t at_row, int head) const {
    return static_cast<const Bf16*>(args.index_qk) +
           (at_row * (args.shape.index_heads + 1) + head) * args.shape.index_dim;
  }

  __device__ void index_query(int head) const {
    const Bf16* x = index_vector(row, head);
    Bf16* out = static_cast<Bf16*>(args.index_q) +
                (row * args.shape.index_heads + head) * args.shape.index_dim;
    norm_and_rotate_any(
        args, args.shape.index_dim, args.index_q_norm, position(),
        [=](int col) { return to_float(x[col]); },
        [=](int col, float value) { out[col] = from_float<Bf16>(value); });
  }

  __device__ Bf16* ring_key(int64_t position) const {
    return reinterpret_cast<Bf16*>(ring_entry(args.cache.raw_keys, span.slot, position));
  }
  __device__ int32_t* ring_position(int64_t position) const {
    return reinterpret_cast<int32_t*>(ring_entry(args.cache.positions, span.slot, position));
  }
  __device__ int64_t row_of(int64_t position) const { return row + (position - token); }

  __device__ void write_raw_key(int64_t position) const {
    const Bf16* from = index_vector(row_of(position), args.shape.index_heads);
    Bf16* to = ring_key(position);
    for (int col = lane_id(); col < args.shape.index_dim; col += kWarp) to[col] = from[col];
  }
  __device__ void write_position(int64_t position) const {
    if (lane_id() < kAxes)
      ring_position(position)[lane_id()] = args.positions[row_of(position) * kAxes + lane_id()];
  }

  __device__ void raw_key() const {
    const RingRule rule(span, args.shape.block);
    if (rule.row_writes(token, args.cache.raw_keys.slots)) write_raw_key(token);
    if (rule.row_writes(token, args.cache.positions.slots)) write_position(token);
    if ((token + 1) % args.shape.block != 0) return;
    const int64_t first = token + 1 - args.shape.block;
    pooled_key(first);
    __syncwarp();  // every lane has read the ring before its slots are written anew
    for (int64_t position = first; position < span.position; ++position) {
      const int64_t next_key = rule.successor(position, args.cache.raw_keys.slots);
      if (next_key > position) write_raw_key(next_key);
      const int64_t next_position = rule.successor(position, args.cache.positions.slots);
      if (next_position > position) write_position(next_position);
    }
  }

  __device__ void pooled_key(int64_t first) const {
    const int dim = args.shape.index_dim;
    const auto mean = [&](int col) {
      float sum = 0;
      for (int64_t position = first; position <= token; ++position) {
        const Bf16* source = position < span.position
                                 ? ring_key(position)
                                 : index_vector(row_of(position), args.shape.index_heads);
        sum += to_float(source[col]);
      }
      return round_bf16(sum / static_cast<float>(args.shape.block));
    };
    const int32_t* start =
        first < span.position ? ring_position(first) : args.positions + row_of(first) * kAxes;
    const DType dtype = args.cache.index_keys.dtype;
    std::byte* page = page_of(args.cache.index_keys, span.pages, first);
    const auto cell =
        static_cast<size_t>(first % ops::kPageTokens / args.shape.block) * static_cast<size_t>(dim);
    norm_and_rotate_any(args, dim, args.index_k_norm, start, mean, [=](int col, float value) {
      store_element(dtype, page, cell + static_cast<size_t>(col), value);
    });
  }

  /// Tasks of a row: queries, index queries, keys, values, the raw index key.
  __device__ void run(int task) const {
    if (task < args.shape.heads) return query(task);
    task -= args.shape.heads;
    if (task < args.shape.index_heads) return index_query(task);
    task -= args.shape.index_heads;
    if (task < args.shape.kv_heads) return key(task);
    task -= args.shape.kv_heads;
    if (task < args.shape.kv_heads) return value(task);
    raw_key();
  }
};

/// One task per warp.
__global__ void __launch_bounds__(kFrontThreads, 2)
    qsa_front_any(const __grid_constant__ ops::QsaFrontArgs args,
                  const __grid_constant__ Batch batch, const __grid_constant__ FrontPlan plan) {
  wait_for_inputs();
  allow_next_kernel();
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kFrontWarps + warp_id();
  const int64_t row = warp / plan.tasks_per_row;
  if (row >= batch.num_rows) return;
  const ops::RowSpan span = batch.spans[batch.row_span[row]];
  const AnyFrontRow front{
      .args = args, .span = span, .row = row, .token = span.position + row - span.row_begin};
  front.run(plan.first_task + static_cast<int>(warp % plan.tasks_per_row));
}

}  // namespace tessera::cuda::device
