// SPDX-License-Identifier: Apache-2.0
// Residual update and next norm of one branch of one row, for the combine kernel and for kernels
// that end in it. A thread owns kVectorBf16 neighbouring columns and keeps them in registers.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/reduce.cuh"
#include "ops/mixer.h"

namespace tessera::cuda::device {

/// How strongly a branch takes the output in.
__device__ __forceinline__ float inject_weight(float logit) { return 2.0F * sigmoid(logit); }

/// Used by all kThreads threads of a block; needs hidden % kVectorBf16 == 0 and hidden <= kThreads
/// * kVectorBf16. Construct it before wait_for_inputs(): that loads the norm's weights.
template <int kThreads>
class BranchUpdate {
 public:
  __device__ __forceinline__ BranchUpdate(const ops::CombineArgs& args, int branch)
      : column_(static_cast<int>(threadIdx.x) * kVectorBf16),
        branch_(branch),
        active_(column_ < args.hidden) {
    if (args.next_norm == nullptr || !active_) return;
    const auto* weights =
        reinterpret_cast<const float4*>(args.next_norm + branch * args.hidden + column_);
    const float4 low = weights[0], high = weights[1];
    norm_[0] = low.x, norm_[1] = low.y, norm_[2] = low.z, norm_[3] = low.w;
    norm_[4] = high.x, norm_[5] = high.y, norm_[6] = high.z, norm_[7] = high.w;
  }

  /// After wait_for_inputs(), once per block and `row`. `out(column, values)` yields the block's
  /// output, already rounded to BF16, at the kVectorBf16 columns from `column`; it is called by the
  /// threads that own columns, so it must not synchronise. `scratch`: one float per warp in shared
  /// memory.
  template <class Out>
  __device__ __forceinline__ void operator()(const ops::CombineArgs& args, int row, Out&& out,
                                             float* scratch) const {
    const size_t branch_row = static_cast<size_t>(row) * static_cast<size_t>(args.branches) +
                              static_cast<size_t>(branch_);
    const size_t at = branch_row * static_cast<size_t>(args.hidden) + static_cast<size_t>(column_);
    float residual[kVectorBf16] = {};
    float square = 0;
    if (active_) {
      auto* wide = reinterpret_cast<uint4*>(static_cast<Bf16*>(args.wide) + at);
      const float weight = inject_weight(args.inject[branch_row]);
      unpack_bf16x8(*wide, residual);
      float values[kVectorBf16];
      out(column_, values);
#pragma unroll
      for (int lane = 0; lane < kVectorBf16; ++lane) residual[lane] += weight * values[lane];
      const uint4 rounded = pack_bf16x8(residual);
      *wide = rounded;
      unpack_bf16x8(rounded, residual);  // the norm reads what was stored
#pragma unroll
      for (int lane = 0; lane < kVectorBf16; ++lane) square += residual[lane] * residual[lane];
    }
    if (args.next_norm == nullptr) return;  // the same in every thread
    const float mean = block_sum<kThreads>(square, scratch) / static_cast<float>(args.hidden);
    const float scale = rsqrtf(mean + args.eps);
    if (!active_) return;
#pragma unroll
    for (int lane = 0; lane < kVectorBf16; ++lane)
      residual[lane] = residual[lane] * scale * (1.0F + norm_[lane]);
    *reinterpret_cast<uint4*>(static_cast<Bf16*>(args.normed) + at) = pack_bf16x8(residual);
  }

 private:
  float norm_[kVectorBf16] = {};
  int column_;
  int branch_;
  bool active_;
};

}  // namespace tessera::cuda::device
