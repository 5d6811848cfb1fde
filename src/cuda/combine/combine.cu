// SPDX-License-Identifier: Apache-2.0
// Residual update and next norm in one kernel; each branch of each row is one block.
#include <array>
#include <utility>

#include "cuda/combine/combine_device.cuh"
#include "cuda/combine/combine_plan.h"
#include "cuda/cuda_kernels.h"
#include "cuda/device/pdl.cuh"

namespace tessera::cuda {
namespace device {
namespace {

static_assert(kCombineVector == kVectorBf16);

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads) combine(ops::CombineArgs args) {
  __shared__ float scratch[Tile::kThreads / kWarp];
  const auto branch_row = static_cast<int>(blockIdx.x);
  const int row = branch_row / args.branches;
  const BranchUpdate<Tile::kThreads> update(args, branch_row % args.branches);
  // Before the wait: the next mixer can fetch its weights while our inputs are still being made.
  allow_next_kernel();
  wait_for_inputs();
  const auto* out = static_cast<const Bf16*>(args.out) +
                    static_cast<size_t>(row) * static_cast<size_t>(args.hidden);
  update(
      args, row,
      [out](int column, float(&values)[kVectorBf16]) {
        unpack_bf16x8(*reinterpret_cast<const uint4*>(out + column), values);
      },
      scratch);
}

/// Any width: a thread updates every kThreads-th column and reads its own values again for the
/// norm.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads) combine_scalar(ops::CombineArgs args) {
  __shared__ float scratch[Tile::kThreads / kWarp];
  allow_next_kernel();
  wait_for_inputs();
  const size_t branch_row = blockIdx.x;
  const auto hidden = static_cast<size_t>(args.hidden);
  const auto branches = static_cast<size_t>(args.branches);
  auto* wide = static_cast<Bf16*>(args.wide) + branch_row * hidden;
  const auto* out = static_cast<const Bf16*>(args.out) + branch_row / branches * hidden;
  const float weight = inject_weight(args.inject[branch_row]);
  float square = 0;
  for (size_t column = threadIdx.x; column < hidden; column += Tile::kThreads) {
    const Bf16 updated = from_float<Bf16>(to_float(wide[column]) + weight * to_float(out[column]));
    wide[column] = updated;
    square += to_float(updated) * to_float(updated);
  }
  if (args.next_norm == nullptr) return;
  const float mean = block_sum<Tile::kThreads>(square, scratch) / static_cast<float>(args.hidden);
  const float scale = rsqrtf(mean + args.eps);
  const float* norm = args.next_norm + branch_row % branches * hidden;
  auto* normed = static_cast<Bf16*>(args.normed) + branch_row * hidden;
  for (size_t column = threadIdx.x; column < hidden; column += Tile::kThreads)
    normed[column] = from_float<Bf16>(to_float(wide[column]) * scale * (1.0F + norm[column]));
}

}  // namespace
}  // namespace device

namespace {

template <size_t kIndex>
struct VectorTile {
  static constexpr int kThreads = kCombineTiles[kIndex].threads;
};
struct ScalarTile {
  static constexpr int kThreads = 256;
};

using Kernel = void (*)(ops::CombineArgs);

template <size_t... kIndices>
constexpr auto kernel_table(std::index_sequence<kIndices...>) {
  return std::array<Kernel, sizeof...(kIndices)>{device::combine<VectorTile<kIndices>>...};
}

}  // namespace

void launch_combine(Context& context, const ops::CombineArgs& args) {
  static const auto kKernels = kernel_table(std::make_index_sequence<kCombineTiles.size()>());
  const int tile = plan_combine(args.hidden);
  const auto blocks = static_cast<unsigned>(args.rows) * static_cast<unsigned>(args.branches);
  if (tile < 0) {
    launch(context, {.grid = {blocks}, .block = {ScalarTile::kThreads}},
           device::combine_scalar<ScalarTile>, args);
    return;
  }
  const auto index = static_cast<size_t>(tile);
  launch(context,
         {.grid = {blocks}, .block = {static_cast<unsigned>(kCombineTiles[index].threads)}},
         kKernels[index], args);
}

ops::KernelNote note_combine(const GpuSpec&) {
  return {.op = "combine",
          .kernel = "one block per branch of a row",
          .reason = "update and next norm in one launch, 16 bytes per thread where widths allow"};
}

}  // namespace tessera::cuda
