// SPDX-License-Identifier: Apache-2.0
// Attention over gathered blocks for any shape and cache type: a block of threads per row and query
// head, softmax kept up to date chunk by chunk in FP32.
#pragma once

#include <math_constants.h>

#include "cuda/device/batch.cuh"
#include "cuda/device/bf16.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/qsa_attend/attend_fold.cuh"

namespace tessera::cuda::device {

struct AttendAny {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kChunk = 64;  // tokens between two updates of the sums
};

/// The tokens of a row in the order of its list, then the open tail.
class RowTokens {
 public:
  __device__ RowTokens(const ops::QsaAttendArgs& args, const ops::RowSpan& span, int row)
      : blocks_(args.blocks + static_cast<size_t>(row) * static_cast<size_t>(args.budget_blocks)),
        block_(args.shape.block) {
    const int visible = static_cast<int>(span.position) + (row - span.row_begin) + 1;
    listed_ = args.counts[row] * block_;
    tail_ = visible / block_ * block_;
    count_ = listed_ + visible - tail_;
  }
  __device__ int count() const { return count_; }
  __device__ int at(int entry) const {
    if (entry >= listed_) return tail_ + entry - listed_;
    return blocks_[entry / block_] * block_ + entry % block_;
  }

 private:
  const int32_t* blocks_;
  int block_, listed_, tail_, count_;
};

/// Where the vector of a token starts, in elements of its page.
__device__ __forceinline__ size_t token_element(const ops::QsaShape& shape, int kv_head,
                                                int token) {
  return (static_cast<size_t>(kv_head) * ops::kPageTokens +
          static_cast<size_t>(token % ops::kPageTokens)) *
         static_cast<size_t>(shape.head_dim);
}

/// Dynamic shared memory: floats [2, D], the query and the sums.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    attend_any_kernel(ops::QsaAttendArgs args, Batch batch) {
  extern __shared__ float vectors[];
  __shared__ float logits[Config::kChunk];
  __shared__ int tokens[Config::kChunk];
  const ops::QsaShape& shape = args.shape;
  const int dim = shape.head_dim;
  float* query = vectors;
  float* sums = vectors + dim;
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x) / shape.heads;
  const int head = static_cast<int>(blockIdx.x) % shape.heads;
  const int kv_head = head / (shape.heads / shape.kv_heads);
  const size_t vector = static_cast<size_t>(blockIdx.x) * static_cast<size_t>(dim);
  wait_for_inputs();
  allow_next_kernel();

  const ops::RowSpan& span = batch.spans[batch.row_span[row]];
  const RowTokens list(args, span, row);
  for (int col = thread; col < dim; col += Config::kThreads) {
    query[col] = to_float(static_cast<const Bf16*>(args.q)[vector + static_cast<size_t>(col)]);
    sums[col] = 0;
  }
  const float scale = CUDART_L2E_F / sqrtf(static_cast<float>(dim));
  float peak = -kInfinity, total = 0;
  for (int first = 0; first < list.count(); first += Config::kChunk) {
    const int count = min(list.count() - first, Config::kChunk);
    __syncthreads();  // the query is there; the last chunk's logits have been used
    for (int entry = warp_id(); entry < count; entry += Config::kWarps) {
      const int token = list.at(first + entry);
      const std::byte* page = page_of(args.cache.keys, span.pages, token);
      const size_t at = token_element(shape, kv_head, token);
      float product = 0;
      for (int col = lane_id(); col < dim; col += kWarp)
        product +=
            query[col] * load_element(args.cache.keys.dtype, page, at + static_cast<size_t>(col));
      product = warp_sum(product);
      if (lane_id() == 0) {
        logits[entry] = product * scale;
        tokens[entry] = token;
      }
    }
    __syncthreads();  // the chunk's logits are there
    float chunk_peak = peak;
    for (int entry = 0; entry < count; ++entry) chunk_peak = fmaxf(chunk_peak, logits[entry]);
    const float keep = total == 0 ? 0 : exp2f(peak - chunk_peak);
    peak = chunk_peak;
    total *= keep;
    for (int entry = 0; entry < count; ++entry) total += exp2f(logits[entry] - peak);
    for (int col = thread; col < dim; col += Config::kThreads) {
      float sum = sums[col] * keep;
      for (int entry = 0; entry < count; ++entry) {
        const std::byte* page = page_of(args.cache.values, span.pages, tokens[entry]);
        const size_t at = token_element(shape, kv_head, tokens[entry]) + static_cast<size_t>(col);
        sum += exp2f(logits[entry] - peak) * load_element(args.cache.values.dtype, page, at);
      }
      sums[col] = sum;
    }
  }
  for (int col = thread; col < dim; col += Config::kThreads) {
    const float gate = to_float(
        static_cast<const Bf16*>(args.q_gate)[2 * vector + static_cast<size_t>(dim + col)]);
    static_cast<Bf16*>(args.out)[vector + static_cast<size_t>(col)] =
        from_float<Bf16>(sums[col] / total * sigmoid(gate));
  }
}

}  // namespace tessera::cuda::device
