// SPDX-License-Identifier: Apache-2.0
// Gated Residual mixer: rows go through norm, down, up and the gated mean in blocks, so that the
// wide intermediates of a block are read back from cache and never grow with the launch.
#include <algorithm>
#include <array>

#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/linear_kernels.h"
#include "cpu/fast/row_math.h"

namespace tessera::cpu {
namespace {

// Large enough that dequantising a weight panel is shared by many rows; two wide blocks of the
// released model take 10 MiB.
constexpr int kRowBlock = 128;

constexpr double kSigmoidWork = 8;  // multiply-adds that a sigmoid is worth

struct Buffers {
  float* norm = nullptr;  // [kRowBlock, branches * hidden]
  float* gate = nullptr;  // [kRowBlock, branches * hidden]
  float* down = nullptr;  // [kRowBlock, rank]
};

void normalize(const ops::MixerArgs& args, int first, int count, float* norm) {
  const int64_t branches = args.branches;
  const int64_t begin_piece = first * branches;
  parallel_for(count * branches, grain_for(2.0 * args.hidden),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t piece = begin; piece < end; ++piece) {
                   rms_one_plus(floats(args.wide) + (begin_piece + piece) * args.hidden,
                                args.weights.norm + piece % branches * args.hidden, args.eps,
                                norm + piece * args.hidden, args.hidden);
                 }
               });
}

void mix_block(const ops::MixerArgs& args, int first, int count, const Buffers& buffers,
               Arena& scratch) {
  const int wide = args.branches * args.hidden;
  const int rank = args.weights.down.out_features;
  const float share = 1.0F / static_cast<float>(args.branches);
  normalize(args, first, count, buffers.norm);

  float* inject = args.inject == nullptr
                      ? nullptr
                      : args.inject + static_cast<ptrdiff_t>(first) * args.branches;
  const std::array reads = {
      LinearJob{args.weights.down, buffers.norm, wide, buffers.down, rank},
      LinearJob{args.weights.inject, buffers.norm, wide, inject, args.branches},
  };
  linear_run(std::span(reads).first(inject == nullptr ? 1 : 2), count, args.role, scratch);
  for (int row = 0; row < count; ++row) {
    float* down = buffers.down + static_cast<ptrdiff_t>(row) * rank;
    silu_row(down, share, down, rank);
  }
  if (inject != nullptr) scale_row(inject, share, inject, count * args.branches);

  const std::array up = {LinearJob{args.weights.up, buffers.down, rank, buffers.gate, wide}};
  linear_run(up, count, args.role, scratch);
  const double mean_work = kSigmoidWork * wide;
  parallel_for(count, grain_for(mean_work), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      gated_branch_mean(buffers.gate + row * wide, buffers.norm + row * wide, args.branches,
                        args.hidden, floats(args.mixed) + (first + row) * args.hidden);
    }
  });
}

}  // namespace

void fast_mixer(const ops::MixerArgs& args, Arena& scratch) {
  if (args.rows == 0) return;
  const auto block = static_cast<size_t>(std::min(args.rows, kRowBlock));
  const auto wide = static_cast<size_t>(args.branches) * static_cast<size_t>(args.hidden);
  Buffers buffers;
  buffers.norm = scratch.take<float>(block * wide);
  buffers.gate = scratch.take<float>(block * wide);
  buffers.down = scratch.take<float>(block * static_cast<size_t>(args.weights.down.out_features));
  for (int first = 0; first < args.rows; first += kRowBlock) {
    mix_block(args, first, std::min(kRowBlock, args.rows - first), buffers, scratch);
  }
}

}  // namespace tessera::cpu
