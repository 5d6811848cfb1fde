// SPDX-License-Identifier: Apache-2.0
// Launches the draft layer's input: both norms of every row in one kernel.
#include <array>
#include <utility>

#include "cuda/cuda_kernels.h"
#include "cuda/draft/draft_kernel.cuh"

namespace tessera::cuda {
namespace {

static_assert(kDraftVector == device::kVectorBf16);

template <size_t kIndex>
struct VectorTile {
  static constexpr int kThreads = kDraftTiles[kIndex].threads;
  static constexpr int kVectors = kDraftTiles[kIndex].vectors;
};
struct AnyTile {
  static constexpr int kThreads = kDraftAnyThreads;
};

using Kernel = void (*)(ops::DraftInputArgs);

template <size_t... kIndices>
constexpr auto kernel_table(std::index_sequence<kIndices...>) {
  return std::array<Kernel, sizeof...(kIndices)>{
      device::draft_input_vectors<VectorTile<kIndices>>...};
}

}  // namespace

void launch_draft_input(Context& context, const ops::DraftInputArgs& args) {
  static const auto kKernels = kernel_table(std::make_index_sequence<kDraftTiles.size()>());
  const dim3 grid(static_cast<unsigned>(args.rows) * kDraftRowBlocks);
  if (!supports_draft_vectors(args).empty()) {
    launch(context, {.grid = grid, .block = {kDraftAnyThreads}}, device::draft_input_any<AnyTile>,
           args);
    return;
  }
  const auto tile = static_cast<size_t>(plan_draft(args.branches * args.table.in_features));
  launch(context, {.grid = grid, .block = {static_cast<unsigned>(kDraftTiles[tile].threads)}},
         kKernels[tile], args);
}

ops::KernelNote note_draft_input(const GpuSpec&) {
  return {.op = "draft_input",
          .kernel = "one block per norm, two a row",
          .reason = "BF16 table and 16-byte vectors where widths allow; others: by element"};
}

}  // namespace tessera::cuda
