// SPDX-License-Identifier: Apache-2.0
// PLE mix: gate and norm every row first, then the dilated convolution, then the ring. The three
// passes keep a launch longer than the ring from reading what it has just written.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/ring.h"
#include "cpu/fast/row_math.h"
#include "cpu/fast/vector_math.h"

namespace tessera::cpu {
namespace {

constexpr float kScoreFloor = 1e-6F;  // spec/model.md section 5: sqrt(max(|s|, 1e-6))

constexpr double kRowWork = 8;  // operations per wide element of either pass

struct Buffers {
  float* gated = nullptr;        // [rows, wide], v_g
  float* normed = nullptr;       // [rows, wide], x
  float* zeros = nullptr;        // [wide]
  float* heads = nullptr;        // [threads, 2, hidden]
  const float** taps = nullptr;  // [threads, conv_kernel]
};

/// s = <GRMS1(key), GRMS1(query)> / sqrt(hidden), then its signed root through a sigmoid.
float branch_gate(const ops::PleMixArgs& args, const float* key, const float* query, int64_t at,
                  float* buffer) {
  float* normed_query = buffer + args.hidden;
  rms_one_plus(key, args.norm_key + at, args.eps, buffer, args.hidden);
  rms_one_plus(query, args.norm_query + at, args.eps, normed_query, args.hidden);
  const float score =
      dot(buffer, normed_query, args.hidden) / std::sqrt(static_cast<float>(args.hidden));
  const float root = std::sqrt(std::max(std::fabs(score), kScoreFloor));
  if (score == 0.0F) return vector_sigmoid(0.0F);
  return vector_sigmoid(std::copysign(root, score));
}

void gate_rows(const ops::PleMixArgs& args, const Buffers& buffers) {
  const int64_t hidden = args.hidden;
  const int64_t wide = args.branches * hidden;
  parallel_for(args.batch.num_rows, grain_for(kRowWork * static_cast<double>(wide)),
               [&](int64_t begin, int64_t end, int thread) {
                 float* buffer = buffers.heads + thread * 2 * hidden;
                 for (int64_t row = begin; row < end; ++row) {
                   for (int64_t at = 0; at < wide; at += hidden) {
                     const float* query = floats(args.wide) + row * wide + at;
                     const float gate =
                         branch_gate(args, floats(args.key) + row * wide + at, query, at, buffer);
                     float* gated = buffers.gated + row * wide + at;
                     scale_row(floats(args.value) + row * hidden, gate, gated, args.hidden);
                     rms_one_plus(gated, args.norm_conv + at, args.eps,
                                  buffers.normed + row * wide + at, args.hidden);
                   }
                 }
               });
}

void convolve_rows(const ops::PleMixArgs& args, const Buffers& buffers) {
  const int wide = args.branches * args.hidden;
  for_each_row(args.batch, kRowWork * wide, [&](const ops::RowSpan& span, int row, int thread) {
    const float** taps = buffers.taps + static_cast<ptrdiff_t>(thread) * args.conv_kernel;
    for (int tap = 0; tap < args.conv_kernel; ++tap) {
      const int lag = (args.conv_kernel - 1 - tap) * args.dilation;
      taps[tap] = lagged_row(span, args.conv_ring, row, lag, buffers.normed, wide, buffers.zeros);
    }
    const int64_t at = (span.row_begin + row) * static_cast<int64_t>(wide);
    float* delta = buffers.gated + at;
    add_conv_silu_row(taps, args.conv_weight, args.conv_kernel, delta, wide);
    add_scaled(1.0F, delta, floats(args.wide) + at, wide);
    if (args.delta != nullptr) {
      std::memcpy(floats(args.delta) + at, delta, static_cast<size_t>(wide) * sizeof(float));
    }
  });
}

}  // namespace

void fast_ple_mix(const ops::PleMixArgs& args, Arena& scratch) {
  if (args.batch.num_rows == 0) return;
  const auto wide = static_cast<size_t>(args.branches) * static_cast<size_t>(args.hidden);
  const size_t values = static_cast<size_t>(args.batch.num_rows) * wide;
  Buffers buffers;
  buffers.gated = scratch.take<float>(values);
  buffers.normed = scratch.take<float>(values);
  buffers.zeros = scratch.take<float>(wide);
  const auto threads = static_cast<size_t>(num_threads());
  buffers.heads = scratch.take<float>(threads * 2 * static_cast<size_t>(args.hidden));
  buffers.taps = scratch.take<const float*>(threads * static_cast<size_t>(args.conv_kernel));
  std::fill_n(buffers.zeros, wide, 0.0F);
  gate_rows(args, buffers);
  convolve_rows(args, buffers);
  store_ring_rows(args.batch, args.conv_ring, buffers.normed, static_cast<int64_t>(wide));
}

}  // namespace tessera::cpu
