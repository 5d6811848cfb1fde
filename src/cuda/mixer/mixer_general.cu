// SPDX-License-Identifier: Apache-2.0
// The mixer from separate launches, in blocks of rows so that its scratch is bounded. The general
// path takes few rows at once: the gates of a block are still in the L2 when the mean reads them.
#include "cuda/mixer/mixer_general.h"

#include <algorithm>
#include <array>
#include <span>

#include "cuda/device/bf16.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "cuda/linear/gemm.h"
#include "cuda/mixer/mixer_prompt_kernel.cuh"

namespace tessera::cuda {
namespace device {
namespace {

/// kVector neighbouring BF16 values in one access.
template <int kVector>
struct Vector;
template <>
struct Vector<1> {
  __device__ static void load(const Bf16* from, float (&out)[1]) { out[0] = to_float(*from); }
  __device__ static void store(Bf16* to, const float (&in)[1]) { *to = from_float<Bf16>(in[0]); }
};
template <>
struct Vector<kVectorBf16> {
  __device__ static void load(const Bf16* from, float (&out)[kVectorBf16]) {
    unpack_bf16x8(*reinterpret_cast<const uint4*>(from), out);
  }
  __device__ static void store(Bf16* to, const float (&in)[kVectorBf16]) {
    *reinterpret_cast<uint4*>(to) = pack_bf16x8(in);
  }
};

/// One block per branch of a row.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    branch_norm(const Bf16* wide, const float* norm, Bf16* normed, int branches, int hidden,
                float eps) {
  constexpr int kVector = Config::kVector, kStride = Config::kThreads * kVector;
  __shared__ float scratch[Config::kThreads / kWarp];
  allow_next_kernel();
  wait_for_inputs();
  const auto branch = static_cast<int>(blockIdx.x) % branches;
  const size_t start = static_cast<size_t>(blockIdx.x) * static_cast<size_t>(hidden);
  const int first = static_cast<int>(threadIdx.x) * kVector;
  float values[kVector];
  float square = 0;
  for (int column = first; column < hidden; column += kStride) {
    Vector<kVector>::load(wide + start + column, values);
#pragma unroll
    for (const float value : values) square += value * value;
  }
  const float mean = block_sum<Config::kThreads>(square, scratch) / static_cast<float>(hidden);
  const float scale = rsqrtf(mean + eps);
  for (int column = first; column < hidden; column += kStride) {
    Vector<kVector>::load(wide + start + column, values);
    const float* weights = norm + branch * hidden + column;
#pragma unroll
    for (int lane = 0; lane < kVector; ++lane) values[lane] *= scale * (1.0F + weights[lane]);
    Vector<kVector>::store(normed + start + column, values);
  }
}

/// low = silu(sum / branches), rounded; the inject logits are scaled in place.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    scale_and_gate(const float* sums, Bf16* low, int num_low, float* inject, int num_inject,
                   float share) {
  allow_next_kernel();
  wait_for_inputs();
  const int index = static_cast<int>(blockIdx.x) * Config::kThreads + static_cast<int>(threadIdx.x);
  if (index < num_low)
    low[index] = from_float<Bf16>(silu(sums[index] * share));
  else if (index - num_low < num_inject)
    inject[index - num_low] *= share;
}

/// mixed = mean over the branches of sigmoid(gate) * N.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    gated_mean(const float* gates, const Bf16* normed, Bf16* mixed, int rows, int branches,
               int hidden) {
  constexpr int kVector = Config::kVector;
  allow_next_kernel();
  wait_for_inputs();
  const size_t index = (static_cast<size_t>(blockIdx.x) * Config::kThreads + threadIdx.x) * kVector;
  const size_t row = index / static_cast<size_t>(hidden);
  if (row >= static_cast<size_t>(rows)) return;
  const size_t column = index % static_cast<size_t>(hidden);
  float sum[kVector] = {};
  for (int branch = 0; branch < branches; ++branch) {
    const size_t at = (row * static_cast<size_t>(branches) + static_cast<size_t>(branch)) *
                          static_cast<size_t>(hidden) +
                      column;
    float values[kVector];
    Vector<kVector>::load(normed + at, values);
#pragma unroll
    for (int lane = 0; lane < kVector; ++lane)
      sum[lane] += sigmoid(gates[at + lane]) * values[lane];
  }
#pragma unroll
  for (float& value : sum) value /= static_cast<float>(branches);
  Vector<kVector>::store(mixed + index, sum);
}

}  // namespace
}  // namespace device

namespace {

using device::Bf16;

constexpr int kBlockRows = 512;

template <int kVectorLanes>
struct RowConfig {
  static constexpr int kVector = kVectorLanes;
  static constexpr int kThreads = 256;
};
using Scalar = RowConfig<1>;
using Wide = RowConfig<device::kVectorBf16>;

unsigned blocks_for(size_t count, size_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

/// Byte offsets of the intermediate results of one block of rows.
struct GeneralScratch {
  size_t normed, sums, low, gates, total;

  /// `low_bytes` for the down product after SiLU, in the form that its reader wants.
  GeneralScratch(const ops::MixerArgs& args, int rows, size_t low_bytes, bool has_gates) {
    const auto count = static_cast<size_t>(rows);
    const auto wide = static_cast<size_t>(args.branches) * static_cast<size_t>(args.hidden);
    const auto rank = static_cast<size_t>(args.weights.down.out_features);
    size_t at = 0;
    const auto take = [&at](size_t bytes) {
      constexpr size_t kAlign = 256;
      const size_t start = at;
      at += (bytes + kAlign - 1) / kAlign * kAlign;
      return start;
    };
    normed = take(args.normed == nullptr ? count * wide * sizeof(Bf16) : 0);
    sums = take(count * rank * sizeof(float));
    low = take(low_bytes);
    gates = take(has_gates ? count * wide * sizeof(float) : 0);
    total = at;
  }
};

/// N of a block of rows: written here if nobody has.
const Bf16* normed_rows(Context& context, const ops::MixerArgs& args, std::byte* scratch,
                        int first_row, int rows) {
  if (args.normed != nullptr)
    return static_cast<const Bf16*>(args.normed) + static_cast<size_t>(first_row) *
                                                       static_cast<size_t>(args.branches) *
                                                       static_cast<size_t>(args.hidden);
  launch_branch_norm(context, args, first_row, rows, scratch);
  return reinterpret_cast<const Bf16*>(scratch);
}

/// These products leave the context's scratch alone.
void multiply(Context& context, ops::Role role, const void* x, int rows,
              std::span<const ops::LinearPart> parts) {
  if (role == ops::Role::kDecode) return gemv_decode(context, x, rows, parts);
  for (const ops::LinearPart& part : parts)
    gemm_prefill(context, x, rows, part.weight, part.y, part.output);
}

void mix_rows(Context& context, const ops::MixerArgs& args, std::byte* base,
              const GeneralScratch& scratch, int first_row, int rows) {
  const auto first = static_cast<size_t>(first_row), count = static_cast<size_t>(rows);
  const auto hidden = static_cast<size_t>(args.hidden);
  const auto branches = static_cast<size_t>(args.branches);
  const auto rank = static_cast<size_t>(args.weights.down.out_features);
  const Bf16* normed = normed_rows(context, args, base + scratch.normed, first_row, rows);
  auto* sums = reinterpret_cast<float*>(base + scratch.sums);
  auto* low = reinterpret_cast<Bf16*>(base + scratch.low);
  auto* gates = reinterpret_cast<float*>(base + scratch.gates);
  float* inject = args.inject == nullptr ? nullptr : args.inject + first * branches;

  const std::array parts{
      ops::LinearPart{.weight = args.weights.down, .y = sums, .output = ops::Output::kFloat},
      ops::LinearPart{.weight = args.weights.inject, .y = inject, .output = ops::Output::kFloat}};
  const size_t num_parts = inject == nullptr ? 1 : 2;
  multiply(context, args.role, normed, rows, std::span(parts).first(num_parts));
  const size_t num_low = count * rank, num_inject = inject == nullptr ? 0 : count * branches;
  launch(
      context,
      {.grid = {blocks_for(num_low + num_inject, Scalar::kThreads)}, .block = {Scalar::kThreads}},
      device::scale_and_gate<Scalar>, sums, low, static_cast<int>(num_low), inject,
      static_cast<int>(num_inject), 1.0F / static_cast<float>(args.branches));

  const ops::LinearPart up{.weight = args.weights.up, .y = gates, .output = ops::Output::kFloat};
  multiply(context, args.role, low, rows, {&up, 1});
  auto* mixed = static_cast<Bf16*>(args.mixed) + first * hidden;
  const auto mean = [&](auto config, auto kernel) {
    using Config = decltype(config);
    constexpr auto kPerBlock = static_cast<size_t>(Config::kThreads * Config::kVector);
    launch(context, {.grid = {blocks_for(count * hidden, kPerBlock)}, .block = {Config::kThreads}},
           kernel, gates, normed, mixed, rows, args.branches, args.hidden);
  };
  if (args.hidden % Wide::kVector == 0)
    mean(Wide{}, device::gated_mean<Wide>);
  else
    mean(Scalar{}, device::gated_mean<Scalar>);
}

void mix_prompt_rows(Context& context, const ops::MixerArgs& args, std::byte* base,
                     const GeneralScratch& scratch, int first_row, int rows) {
  using Plan = PromptMixer;
  using UpShared = device::GatedUpShared<Plan>;
  static_assert(sizeof(UpShared) <= kH200.shared_bytes_per_block);
  const auto first = static_cast<size_t>(first_row), hidden = static_cast<size_t>(args.hidden);
  const Bf16* normed = normed_rows(context, args, base + scratch.normed, first_row, rows);
  auto* sums = reinterpret_cast<float*>(base + scratch.sums);
  std::byte* low = base + scratch.low;
  gemm_prefill(context, normed, rows, args.weights.down, sums, ops::Output::kFloat);

  const bool injects = args.inject != nullptr;
  const device::FinishDownArgs finish{
      .normed = normed,
      .inject_weight = injects ? static_cast<const Bf16*>(args.weights.inject.data) : nullptr,
      .sums = sums,
      .low = low,
      .inject = injects ? args.inject + first * Plan::kBranches : nullptr,
      .rows = rows,
      .wide = Plan::kBranches * args.hidden};
  launch(context,
         {.grid = {blocks_for(static_cast<size_t>(rows), Plan::kFinishRows)},
          .block = {Plan::kFinishThreads}},
         device::finish_down<Plan>, finish);

  const device::GatedUpArgs up{.up = static_cast<const Bf16*>(args.weights.up.data),
                               .low = low,
                               .normed = normed,
                               .mixed = static_cast<Bf16*>(args.mixed) + first * hidden,
                               .rows = rows,
                               .hidden = args.hidden};
  launch(
      context,
      {.grid = {static_cast<unsigned>(args.hidden / Plan::kColumns),
                static_cast<unsigned>(Plan::row_parts(rows, args.hidden, context.gpu().num_sms))},
       .block = {Plan::kUpThreads},
       .shared_bytes = sizeof(UpShared)},
      device::gated_up<Plan>, up);
}

/// `mix` for up to `most_rows` rows at a time.
template <class Mix>
void in_blocks(Context& context, const ops::MixerArgs& args, const GeneralScratch& scratch,
               int most_rows, Mix&& mix) {
  auto* base = static_cast<std::byte*>(context.scratch(scratch.total));
  for (int first = 0; first < args.rows; first += most_rows)
    mix(context, args, base, scratch, first, std::min(most_rows, args.rows - first));
}

}  // namespace

void launch_branch_norm(Context& context, const ops::MixerArgs& args, int first_row, int rows,
                        void* normed) {
  const size_t start = static_cast<size_t>(first_row) * static_cast<size_t>(args.branches) *
                       static_cast<size_t>(args.hidden);
  const LaunchShape shape{
      .grid = {static_cast<unsigned>(rows) * static_cast<unsigned>(args.branches)},
      .block = {Wide::kThreads}};
  launch(context, shape,
         args.hidden % Wide::kVector == 0 ? device::branch_norm<Wide> : device::branch_norm<Scalar>,
         static_cast<const Bf16*>(args.wide) + start, args.weights.norm, static_cast<Bf16*>(normed),
         args.branches, args.hidden, args.eps);
}

void launch_mixer_general(Context& context, const ops::MixerArgs& args) {
  const int rows = std::min(args.rows, kBlockRows);
  const size_t low_bytes = static_cast<size_t>(rows) *
                           static_cast<size_t>(args.weights.down.out_features) * sizeof(Bf16);
  in_blocks(context, args, GeneralScratch(args, rows, low_bytes, true), kBlockRows, mix_rows);
}

void launch_mixer_prompt(Context& context, const ops::MixerArgs& args) {
  const int rows = std::min(args.rows, PromptMixer::kMostRows);
  in_blocks(context, args, GeneralScratch(args, rows, PromptMixer::low_bytes(rows), false),
            PromptMixer::kMostRows, mix_prompt_rows);
}

}  // namespace tessera::cuda
