// SPDX-License-Identifier: Apache-2.0
// QSA front: one pass over the rows writes queries, cache and the block keys that they complete;
// rings are written last, because rows of the same launch still read them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/qsa_pages.h"
#include "cpu/fast/ring.h"
#include "cpu/fast/row_math.h"

namespace tessera::cpu {
namespace {

constexpr int kAxes = 3;        // t, h, w
constexpr double kRowWork = 4;  // operations per element of a head

/// Per-thread buffers.
struct Workspace {
  float* cosine = nullptr;  // [rotary_dim / 2]
  float* sine = nullptr;    // [rotary_dim / 2]
  float* vector = nullptr;  // [max(head_dim, index_dim)]
};

/// Products and functions in double: at long contexts a float angle is off by a milliradian.
void set_angles(const ops::QsaFrontArgs& args, const int32_t* position, const Workspace& work) {
  const ops::RopeTable& rope = args.rope;
  for (int pair = 0; pair < args.shape.rotary_dim / 2; ++pair) {
    const double angle = double{rope.inv_freq[pair]} * position[rope.axis[pair]];
    work.cosine[pair] = static_cast<float>(std::cos(angle)) * rope.attention_scale;
    work.sine[pair] = static_cast<float>(std::sin(angle)) * rope.attention_scale;
  }
}

void norm_and_rotate(const ops::QsaFrontArgs& args, const float* x, const float* norm, int dim,
                     const Workspace& work, float* out) {
  rms_one_plus(x, norm, args.eps, out, dim);
  rotate_row(work.cosine, work.sine, args.shape.rotary_dim / 2, out);
}

void write_queries(const ops::QsaFrontArgs& args, int64_t row, const Workspace& work) {
  const ops::QsaShape& shape = args.shape;
  const int64_t dim = shape.head_dim;
  const int64_t index_dim = shape.index_dim;
  for (int64_t head = row * shape.heads; head < (row + 1) * shape.heads; ++head) {
    norm_and_rotate(args, floats(args.q_gate) + head * 2 * dim, args.q_norm, shape.head_dim, work,
                    floats(args.q) + head * dim);
  }
  const float* index_row = floats(args.index_qk) + row * (shape.index_heads + 1) * index_dim;
  float* index_out = floats(args.index_q) + row * shape.index_heads * index_dim;
  for (int64_t at = 0; at < shape.index_heads * index_dim; at += index_dim) {
    norm_and_rotate(args, index_row + at, args.index_q_norm, shape.index_dim, work, index_out + at);
  }
}

void write_keys_values(const ops::QsaFrontArgs& args, const ops::RowSpan& span, int64_t row,
                       int64_t token, const Workspace& work) {
  const ops::QsaShape& shape = args.shape;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const int64_t at = (row * shape.kv_heads + head) * shape.head_dim;
    norm_and_rotate(args, floats(args.k) + at, args.k_norm, shape.head_dim, work, work.vector);
    narrow_row(work.vector, args.cache.keys.dtype,
               cached_vector(args.cache.keys, shape, span, head, token), shape.head_dim);
    narrow_row(floats(args.v) + at, args.cache.values.dtype,
               cached_vector(args.cache.values, shape, span, head, token), shape.head_dim);
  }
}

const float* raw_key(const ops::QsaFrontArgs& args, const ops::RowSpan& span, int64_t token) {
  if (token < span.position) {
    return reinterpret_cast<const float*>(args.cache.raw_keys.entry(span.slot, token));
  }
  const ops::QsaShape& shape = args.shape;
  const int64_t row = span.row_begin + token - span.position;
  return floats(args.index_qk) +
         (row * (shape.index_heads + 1) + shape.index_heads) * shape.index_dim;
}

const int32_t* position_of(const ops::QsaFrontArgs& args, const ops::RowSpan& span, int64_t token) {
  if (token < span.position) {
    return reinterpret_cast<const int32_t*>(args.cache.positions.entry(span.slot, token));
  }
  return args.positions + (span.row_begin + token - span.position) * kAxes;
}

/// Key of the block that ends with `last`.
void write_index_key(const ops::QsaFrontArgs& args, const ops::RowSpan& span, int64_t last,
                     const Workspace& work) {
  const ops::QsaShape& shape = args.shape;
  const int64_t first = last + 1 - shape.block;
  const float share = 1.0F / static_cast<float>(shape.block);
  scale_row(raw_key(args, span, first), share, work.vector, shape.index_dim);
  for (int64_t token = first + 1; token <= last; ++token) {
    add_scaled(share, raw_key(args, span, token), work.vector, shape.index_dim);
  }
  set_angles(args, position_of(args, span, first), work);
  norm_and_rotate(args, work.vector, args.index_k_norm, shape.index_dim, work, work.vector);
  narrow_row(work.vector, args.cache.index_keys.dtype,
             cached_index_key(args.cache.index_keys, shape, span, first / shape.block),
             shape.index_dim);
}

/// Rows that a launch longer than the ring would overwrite are skipped.
void write_rings(const ops::QsaFrontArgs& args, const ops::RowSpan& span) {
  const ops::RingRef& raw = args.cache.raw_keys;
  const ops::RingRef& positions = args.cache.positions;
  const int64_t end = span.position + span.num_rows;
  for (int64_t token = std::max(span.position, end - raw.slots); token < end; ++token) {
    std::memcpy(raw.entry(span.slot, token), raw_key(args, span, token),
                static_cast<size_t>(args.shape.index_dim) * sizeof(float));
  }
  for (int64_t token = std::max(span.position, end - positions.slots); token < end; ++token) {
    std::memcpy(positions.entry(span.slot, token), position_of(args, span, token),
                kAxes * sizeof(int32_t));
  }
}

}  // namespace

void fast_qsa_front(const ops::QsaFrontArgs& args, Arena& scratch) {
  const ops::QsaShape& shape = args.shape;
  const auto half = static_cast<size_t>(shape.rotary_dim / 2);
  const auto dim = static_cast<size_t>(std::max(shape.head_dim, shape.index_dim));
  const size_t floats = align_up((2 * half + dim) * sizeof(float)) / sizeof(float);
  auto* buffers = scratch.take<float>(static_cast<size_t>(num_threads()) * floats);
  const double row_work = kRowWork * (shape.heads + shape.kv_heads) * shape.head_dim;
  for_each_row(args.batch, row_work, [&](const ops::RowSpan& span, int row, int thread) {
    float* buffer = buffers + static_cast<size_t>(thread) * floats;
    const Workspace work = {buffer, buffer + half, buffer + 2 * half};
    const int64_t launch_row = span.row_begin + row;
    const int64_t token = span.position + row;
    set_angles(args, args.positions + launch_row * kAxes, work);
    if (args.q_gate != nullptr) write_queries(args, launch_row, work);
    write_keys_values(args, span, launch_row, token, work);
    if ((token + 1) % shape.block == 0) write_index_key(args, span, token, work);
  });
  for (const ops::RowSpan& span : args.batch.spans) write_rings(args, span);
}

}  // namespace tessera::cpu
