// SPDX-License-Identifier: Apache-2.0
// End of a launch: one block per sequence stores its last wide row and its last token ids, one
// block per wanted row of logits copies that row.
#include "cuda/cuda_kernels.h"
#include "cuda/device/copy_row.cuh"
#include "cuda/device/pdl.cuh"

namespace tessera::cuda {
namespace device {
namespace {

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) finish(ops::FinishArgs args, Batch batch) {
  wait_for_inputs();
  allow_next_kernel();
  const auto block = static_cast<int>(blockIdx.x);
  const auto width = static_cast<size_t>(args.width);
  const auto* wide = static_cast<const Bf16*>(args.wide);
  if (block >= batch.num_spans) {
    const auto entry = static_cast<size_t>(block - batch.num_spans);
    copy_row<Config>(static_cast<Bf16*>(args.selected) + entry * width,
                     wide + static_cast<size_t>(args.logit_rows[entry]) * width, args.width);
    return;
  }
  const ops::RowSpan span = batch.spans[block];
  if (span.num_rows == 0) return;
  const auto last = static_cast<size_t>(span.row_begin + span.num_rows - 1);
  if (args.keeps_wide)
    copy_row<Config>(reinterpret_cast<Bf16*>(span.slot + args.wide_offset), wide + last * width,
                     args.width);
  // Older ids would be overwritten in the ring by these.
  const int oldest = max(0, span.num_rows - args.token_ring.slots);
  for (int row = oldest + static_cast<int>(threadIdx.x); row < span.num_rows;
       row += Config::kThreads)
    *reinterpret_cast<int64_t*>(ring_entry(args.token_ring, span.slot, span.position + row)) =
        args.ids[span.row_begin + row];
}

}  // namespace
}  // namespace device

namespace {

struct FinishConfig {
  static constexpr int kThreads = 512;
};

}  // namespace

void launch_finish(Context& context, const ops::FinishArgs& args) {
  const device::Batch& batch = context.batch();
  ops::FinishArgs device_args = args;
  device_args.batch = {};  // host memory: the kernel reads `batch` instead
  const auto blocks = static_cast<unsigned>(batch.num_spans + args.num_logit_rows);
  launch(context, {.grid = {blocks}, .block = {FinishConfig::kThreads}},
         device::finish<FinishConfig>, device_args, batch);
}

ops::KernelNote note_finish(const GpuSpec&) {
  return {.op = "finish", .kernel = "one block per row", .reason = "copies only"};
}

}  // namespace tessera::cuda
