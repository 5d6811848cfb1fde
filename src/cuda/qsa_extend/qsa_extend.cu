// SPDX-License-Identifier: Apache-2.0
// Launches the lists of drafts that share a selection.
#include "cuda/cuda_kernels.h"
#include "cuda/qsa_extend/qsa_extend_kernel.cuh"

namespace tessera::cuda {

void launch_qsa_extend(Context& context, const ops::QsaExtendArgs& args) {
  if (args.batch.num_rows == 0) return;
  ops::QsaExtendArgs device_args = args;
  device_args.batch = {};  // host memory: the kernel reads `batch` instead
  const int columns = extend_columns(args.from_stride, args.stride);
  launch(context, {.block = {static_cast<unsigned>(extend_threads(columns))}}, device::extend_lists,
         device_args, context.batch(), columns);
}

ops::KernelNote note_qsa_extend(const GpuSpec&) {
  return {.op = "qsa_extend",
          .kernel = "one block, a thread for each place of a list",
          .reason = "copies only, in place too"};
}

}  // namespace tessera::cuda
