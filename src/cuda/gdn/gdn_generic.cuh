// SPDX-License-Identifier: Apache-2.0
// GDN for any dims and any device, and for both roles: the recurrence in FP32, one block per
// sequence and value head, the matrix stays where it is. Also stores a launch's rows in the ring.
#pragma once

#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/gdn/gdn_math.cuh"
#include "cuda/gdn/gdn_plan.h"

namespace tessera::cuda::device {

/// SiLU of the convolution of one channel at row `row` of a span.
__device__ __forceinline__ float convolved_channel(const ops::GdnArgs& args,
                                                   const ops::RowSpan& span, int row, int channel) {
  const int taps = args.shape.conv_kernel;
  const float* weights = args.conv_weight + static_cast<size_t>(channel) * taps;
  float sum = 0;
  for (int tap = 0; tap < taps; ++tap) {
    const Bf16* inputs = conv_inputs(args, span, row - (taps - 1 - tap));
    if (inputs != nullptr) sum = fmaf(to_float(inputs[channel]), weights[tap], sum);
  }
  return quick_silu(sum);
}

struct GdnGeneric {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / kWarp;

  static size_t shared_bytes(const ops::GdnShape& shape) {
    return sizeof(float) * (2 * static_cast<size_t>(shape.key_dim) +
                            2 * static_cast<size_t>(shape.value_dim) + size_t{kWarps});
  }
};

/// One token and head, in shared memory and (decay, beta) in every thread.
struct GenericToken {
  float* query;    // [dk]
  float* key;      // [dk]
  float* value;    // [dv]
  float* out;      // [dv]
  float* scratch;  // [kWarps]
  float log_decay;
  float beta;
};

/// All threads; ends with the whole token visible to all.
template <class Config>
__device__ __forceinline__ void prepare_token(const ops::GdnArgs& args, const ops::RowSpan& span,
                                              int row, int head, GenericToken& token) {
  const ops::GdnShape& shape = args.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int dk = shape.key_dim, dv = shape.value_dim;
  const int key_head = head / (shape.value_heads / shape.key_heads);
  float query_squares = 0, key_squares = 0;
  for (int dim = thread; dim < dk; dim += Config::kThreads) {
    const float query = convolved_channel(args, span, row, key_head * dk + dim);
    const float key = convolved_channel(args, span, row, (shape.key_heads + key_head) * dk + dim);
    query_squares = fmaf(query, query, query_squares);
    key_squares = fmaf(key, key, key_squares);
    token.query[dim] = query;
    token.key[dim] = key;
  }
  const float query_scale =
      rsqrtf(block_sum<Config::kThreads>(query_squares, token.scratch) + kGdnNormEps) *
      rsqrtf(static_cast<float>(dk));
  const float key_scale =
      rsqrtf(block_sum<Config::kThreads>(key_squares, token.scratch) + kGdnNormEps);
  for (int dim = thread; dim < dk; dim += Config::kThreads) {
    token.query[dim] *= query_scale;
    token.key[dim] *= key_scale;
  }
  for (int dim = thread; dim < dv; dim += Config::kThreads)
    token.value[dim] =
        convolved_channel(args, span, row, 2 * shape.key_heads * dk + head * dv + dim);
  const size_t at = gate_index(args, span.row_begin + row, head);
  token.log_decay = log_decay(args.a_log[head], args.a[at], args.dt_bias[head]);
  token.beta = quick_sigmoid(args.b[at]);
  __syncthreads();  // all dims are there
}

/// All threads: a pending row as an earlier launch used it.
template <class Config>
__device__ __forceinline__ void restore_token(const ops::GdnArgs& args, const ops::RowSpan& span,
                                              int index, int head, GenericToken& token) {
  const ops::GdnPending layout{args.shape};
  const int dk = args.shape.key_dim, dv = args.shape.value_dim;
  const float* stored = pending_row(args, span, index);
  for (int dim = static_cast<int>(threadIdx.x); dim < dk; dim += Config::kThreads)
    token.key[dim] = stored[layout.key_at(head) + dim];
  for (int dim = static_cast<int>(threadIdx.x); dim < dv; dim += Config::kThreads)
    token.value[dim] = stored[layout.value_at(head) + dim];
  token.log_decay = stored[layout.log_decay_at() + head];
  token.beta = stored[layout.beta_at() + head];
  __syncthreads();  // all dims are there
}

template <class Config>
__device__ __forceinline__ void store_token(const ops::GdnArgs& args, const ops::RowSpan& span,
                                            int index, int head, const GenericToken& token) {
  const ops::GdnPending layout{args.shape};
  const int dk = args.shape.key_dim, dv = args.shape.value_dim;
  float* stored = pending_row(args, span, index);
  for (int dim = static_cast<int>(threadIdx.x); dim < dk; dim += Config::kThreads)
    stored[layout.key_at(head) + dim] = token.key[dim];
  for (int dim = static_cast<int>(threadIdx.x); dim < dv; dim += Config::kThreads)
    stored[layout.value_at(head) + dim] = token.value[dim];
  if (threadIdx.x == 0) {
    stored[layout.log_decay_at() + head] = token.log_decay;
    stored[layout.beta_at() + head] = token.beta;
  }
}

/// Each thread takes whole columns. o is left in token.out; `with_output` false updates the matrix
/// only, and in the same order.
template <class Config>
__device__ __forceinline__ void generic_step(const ops::GdnShape& shape, const GenericToken& token,
                                             bool with_output, float* matrix) {
  const int dk = shape.key_dim, dv = shape.value_dim;
  const float decay = expf(token.log_decay);
  for (int column = static_cast<int>(threadIdx.x); column < dv; column += Config::kThreads) {
    float known = 0, out = 0;
    for (int dim = 0; dim < dk; ++dim)
      known = __fmaf_rn(matrix[static_cast<size_t>(dim) * dv + column], token.key[dim], known);
    const float update = __fmul_rn(token.beta, __fmaf_rn(-decay, known, token.value[column]));
    for (int dim = 0; dim < dk; ++dim) {
      float& cell = matrix[static_cast<size_t>(dim) * dv + column];
      cell = __fmaf_rn(token.key[dim], update, __fmul_rn(cell, decay));
      if (with_output) out = __fmaf_rn(cell, token.query[dim], out);
    }
    if (with_output) token.out[column] = out;
  }
}

template <class Config>
__device__ __forceinline__ void generic_norm(const ops::GdnArgs& args, int launch_row, int head,
                                             const GenericToken& token) {
  const int dv = args.shape.value_dim;
  float squares = 0;
  for (int dim = static_cast<int>(threadIdx.x); dim < dv; dim += Config::kThreads)
    squares = fmaf(token.out[dim], token.out[dim], squares);
  const float mean = block_sum<Config::kThreads>(squares, token.scratch) / static_cast<float>(dv);
  const float factor = rsqrtf(mean + args.eps);
  const size_t at = gate_index(args, launch_row, head) * static_cast<size_t>(dv);
  for (int dim = static_cast<int>(threadIdx.x); dim < dv; dim += Config::kThreads) {
    const float z = to_float(static_cast<const Bf16*>(args.z)[at + dim]);
    static_cast<Bf16*>(args.out)[at + dim] = from_float<Bf16>(
        round_bf16(token.out[dim] * factor) * args.norm[dim] * output_gate(args.gate, z));
  }
}

/// Grid: spans x value heads. `copies` [spans, Hv, dk, dv]: where the rows of a verify launch may
/// change a matrix.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    gdn_generic(const ops::GdnArgs args, const Batch batch, float* copies) {
  extern __shared__ float shared[];
  const ops::GdnShape& shape = args.shape;
  const int head = static_cast<int>(blockIdx.x) % shape.value_heads;
  wait_for_inputs();
  const ops::RowSpan span = batch.spans[static_cast<int>(blockIdx.x) / shape.value_heads];
  if (span.slot == nullptr) return;
  GenericToken token{};
  token.query = shared;
  token.key = token.query + shape.key_dim;
  token.value = token.key + shape.key_dim;
  token.out = token.value + shape.value_dim;
  token.scratch = token.out + shape.value_dim;

  const size_t cells = static_cast<size_t>(shape.key_dim) * static_cast<size_t>(shape.value_dim);
  float* matrix =
      reinterpret_cast<float*>(span.slot + args.matrix_offset) + static_cast<size_t>(head) * cells;
  if (args.verify) {
    const int replayed = accepted_rows(args, accepted_count(args, span));
    for (int index = 0; index < replayed; ++index) {
      restore_token<Config>(args, span, index, head, token);
      generic_step<Config>(shape, token, false, matrix);
      __syncthreads();  // the token is read
    }
    float* copy = copies + static_cast<size_t>(blockIdx.x) * cells;
    for (size_t cell = threadIdx.x; cell < cells; cell += Config::kThreads)
      copy[cell] = matrix[cell];
    matrix = copy;
  }
  for (int row = 0; row < span.num_rows; ++row) {
    __syncthreads();  // the token before is read; the copy is whole
    prepare_token<Config>(args, span, row, head, token);
    if (args.verify && row < args.pending_rows) store_token<Config>(args, span, row, head, token);
    generic_step<Config>(shape, token, true, matrix);
    __syncthreads();  // o of all columns is there
    generic_norm<Config>(args, span.row_begin + row, head, token);
  }
}

/// The newest rows of every span into the ring. Grid: spans x ring slots; `Element` divides a row.
template <class Element>
__global__ void gdn_store_ring(const ops::GdnArgs args, const Batch batch) {
  wait_for_inputs();
  const ops::RowSpan span = batch.spans[blockIdx.x];
  const int kept = min(span.num_rows, args.conv_ring.slots);
  if (static_cast<int>(blockIdx.y) >= kept) return;
  const int row = span.num_rows - kept + static_cast<int>(blockIdx.y);
  const auto* from = reinterpret_cast<const Element*>(conv_inputs(args, span, row));
  auto* to = reinterpret_cast<Element*>(ring_entry(args.conv_ring, span.slot, span.position + row));
  const size_t count = static_cast<size_t>(args.shape.channels()) * sizeof(Bf16) / sizeof(Element);
  for (size_t at = threadIdx.x; at < count; at += blockDim.x) to[at] = from[at];
}

}  // namespace tessera::cuda::device
