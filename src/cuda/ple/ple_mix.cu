// SPDX-License-Identifier: Apache-2.0
// The n-gram memory of a launch: one kernel for decode rows of fitting shapes, three for the rest.
#include <array>
#include <utility>

#include "cuda/cuda_kernels.h"
#include "cuda/ple/ple_decode_kernel.cuh"
#include "cuda/ple/ple_prompt_kernel.cuh"

namespace tessera::cuda {
namespace {

using DecodeKernel = void (*)(ops::PleMixArgs, device::Batch);

/// All block widths for one group of rows.
template <int kRows, size_t... kIndices>
constexpr auto decode_table(std::index_sequence<kIndices...>) {
  return std::array<DecodeKernel, sizeof...(kIndices)>{
      device::ple_decode<device::PleDecode<kPleTiles[kIndices], kRows>>...};
}

void launch_decode(Context& context, const ops::PleMixArgs& args) {
  using Tiles = std::make_index_sequence<kPleTiles.size()>;
  static const auto kSingle = decode_table<1>(Tiles());
  static const auto kGroups = decode_table<kPleRowsAtOnce>(Tiles());
  const auto tile = static_cast<size_t>(plan_ple_tile(args.hidden));
  const device::Batch& batch = context.batch();
  // Fewer registers, more blocks at once; the bits of a row are the same.
  const bool single = batch.num_rows <= batch.num_spans;
  const auto blocks = static_cast<unsigned>(batch.num_spans) * static_cast<unsigned>(args.branches);
  launch(context, {.grid = {blocks}, .block = {static_cast<unsigned>(kPleTiles[tile])}},
         single ? kSingle[tile] : kGroups[tile], args, batch);
}

template <class Config>
void launch_prompt(Context& context, const ops::PleMixArgs& args) {
  const device::Batch& batch = context.batch();
  const PleScratch plan = plan_ple_scratch(batch.num_rows, args.branches, args.hidden);
  auto* scratch = static_cast<std::byte*>(context.scratch(plan.bytes));
  const device::PleBuffers buffers{.inputs = reinterpret_cast<device::Bf16*>(scratch + plan.inputs),
                                   .gates = reinterpret_cast<float*>(scratch + plan.gates)};
  const auto rows = static_cast<unsigned>(batch.num_rows);
  const auto branches = static_cast<unsigned>(args.branches);
  launch(context, {.grid = {rows * branches}, .block = {Config::kGateThreads}},
         device::ple_gate<Config>, args, buffers);
  constexpr unsigned kColumns = Config::kConvThreads * Config::kVector;
  const unsigned width = branches * static_cast<unsigned>(args.hidden);
  const dim3 grid{(rows + Config::kConvRows - 1) / Config::kConvRows,
                  (width + kColumns - 1) / kColumns};
  launch(context, {.grid = grid, .block = {Config::kConvThreads}}, device::ple_convolve<Config>,
         args, batch, buffers);
  const dim3 slots{static_cast<unsigned>(args.conv_ring.slots),
                   static_cast<unsigned>(batch.num_spans)};
  launch(context, {.grid = slots, .block = {Config::kConvThreads}}, device::ple_store_ring<Config>,
         args, batch, buffers);
}

}  // namespace

void launch_ple_mix(Context& context, const ops::PleMixArgs& args) {
  if (args.batch.num_rows == 0) return;
  ops::PleMixArgs device_args = args;
  device_args.batch = {};  // host memory: the kernels read context.batch() instead
  if (supports_ple_decode(args).empty())
    launch_decode(context, device_args);
  else if (supports_ple_vectors(args).empty())
    launch_prompt<device::PleVectors>(context, device_args);
  else
    launch_prompt<device::PleElements>(context, device_args);
}

ops::KernelNote note_ple_mix(const GpuSpec&) {
  return {.op = "ple_mix",
          .kernel = "decode: one launch, a branch of a sequence per block; prompts: three launches",
          .reason = "4 taps 3 apart and widths of whole vectors; others: element by element"};
}

}  // namespace tessera::cuda
