// SPDX-License-Identifier: Apache-2.0
// What all GDN kernels share: where a row's convolution inputs lie, its gates, its output gate.
#pragma once

#include "cuda/device/batch.cuh"
#include "cuda/device/bf16.cuh"
#include "ops/gdn.h"

namespace tessera::cuda::device {

inline constexpr float kGdnNormEps = 1e-6F;  // spec/model.md section 3: of the L2 norm

/// Convolution inputs of row `row` of a span, all channels: a row of the launch, for negative `row`
/// an entry of the ring, nullptr before the start of the sequence.
__device__ __forceinline__ const Bf16* conv_inputs(const ops::GdnArgs& args,
                                                   const ops::RowSpan& span, int row) {
  // Both places are computed: a choice costs less than a branch.
  const int64_t position = span.position + row;
  const int64_t launch_row = span.row_begin + row;
  const auto* in_launch = static_cast<const Bf16*>(args.qkv) + launch_row * args.shape.channels();
  const auto* in_ring =
      reinterpret_cast<const Bf16*>(ring_entry(args.conv_ring, span.slot, position));
  if (position < 0) return nullptr;
  return row >= 0 ? in_launch : in_ring;
}

__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0F) + log1pf(expf(-fabsf(x)));
}

/// g = -exp(A_log) softplus(a + dt_bias), at most 0.
__device__ __forceinline__ float log_decay(float a_log, float a, float dt_bias) {
  return -expf(a_log) * softplus(a + dt_bias);
}

/// x sigmoid(x) and sigmoid(x) without the branches of an exact division (off by two units in the
/// last place): the convolution and the gates evaluate them for every channel.
__device__ __forceinline__ float quick_silu(float x) { return __fdividef(x, 1.0F + __expf(-x)); }
__device__ __forceinline__ float quick_sigmoid(float x) {
  return __fdividef(1.0F, 1.0F + __expf(-x));
}

__device__ __forceinline__ float output_gate(ops::GateActivation gate, float z) {
  return gate == ops::GateActivation::kSigmoid ? quick_sigmoid(z) : quick_silu(z);
}

/// Index of a row and value head in [rows, Hv].
__device__ __forceinline__ size_t gate_index(const ops::GdnArgs& args, int launch_row, int head) {
  return static_cast<size_t>(launch_row) * static_cast<size_t>(args.shape.value_heads) +
         static_cast<size_t>(head);
}

/// How many pending rows of the slot count: where the slot says it, what it says, and cut to what
/// can be.
__device__ __forceinline__ const int32_t* accepted_place(const ops::GdnArgs& args,
                                                         const ops::RowSpan& span) {
  return reinterpret_cast<const int32_t*>(span.slot + args.accepted_offset);
}
__device__ __forceinline__ int accepted_count(const ops::GdnArgs& args, const ops::RowSpan& span) {
  return *accepted_place(args, span);
}
__device__ __forceinline__ int accepted_rows(const ops::GdnArgs& args, int count) {
  return min(max(count, 0), args.pending_rows);
}
__device__ __forceinline__ float* pending_row(const ops::GdnArgs& args, const ops::RowSpan& span,
                                              int index) {
  const ops::GdnPending layout{args.shape};
  auto* rows = reinterpret_cast<float*>(span.slot + args.pending_offset);
  return rows + static_cast<size_t>(index) * layout.row_floats();
}

}  // namespace tessera::cuda::device
