// SPDX-License-Identifier: Apache-2.0
// Launches the small steps of a round.
#include "cuda/cuda_kernels.h"
#include "cuda/round/round_kernel.cuh"

namespace tessera::cuda {
namespace {

struct AcceptConfig {
  static constexpr int kThreads = 512;
};
struct TakeConfig {
  static constexpr int kThreads = 64;
};
struct AdvanceConfig {
  static constexpr int kThreads = 32;
};

}  // namespace

void launch_accept(Context& context, const ops::AcceptArgs& args) {
  launch(context,
         {.grid = {static_cast<unsigned>(args.state.num_spans)}, .block = {AcceptConfig::kThreads}},
         device::accept<AcceptConfig>, args);
}

void launch_take_drafts(Context& context, const ops::TakeDraftsArgs& args) {
  if (args.count == 0) return;
  launch(context, {.block = {TakeConfig::kThreads}}, device::take_drafts<TakeConfig>, args);
}

void launch_advance(Context& context, const ops::AdvanceArgs& args) {
  launch(
      context,
      {.grid = {static_cast<unsigned>(args.state.num_spans)}, .block = {AdvanceConfig::kThreads}},
      device::advance<AdvanceConfig>, args);
}

ops::KernelNote note_round(const GpuSpec&) {
  return {.op = "round",
          .kernel = "a warp per sequence, draws as in sample",
          .reason = "a few integers per row, nothing waits for the host"};
}

}  // namespace tessera::cuda
