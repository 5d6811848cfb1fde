// SPDX-License-Identifier: Apache-2.0
// Launches the QSA front: one kernel for norms, RoPE, cache writes and pooled index keys.
#include "cuda/cuda_kernels.h"
#include "cuda/qsa_front/qsa_front_generic.cuh"
#include "cuda/qsa_front/qsa_front_kernel.cuh"

namespace tessera::cuda {

void launch_qsa_front(Context& context, const ops::QsaFrontArgs& args) {
  const FrontPlan plan = plan_front(args.shape, args.cache, args.batch.role, args.batch.num_rows,
                                    args.q_gate != nullptr);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(plan.blocks)),
                          .block = dim3(kFrontThreads)};
  const device::Batch& batch = context.batch();
  if (!plan.fast)
    launch(context, shape, device::qsa_front_any, args, batch, plan);
  else if (plan.tasks_per_warp == kDecodeFrontTasks)
    launch(context, shape, device::qsa_front_fast<device::FastFront<kDecodeFrontTasks>>, args,
           batch, plan);
  else
    launch(context, shape, device::qsa_front_fast<device::FastFront<kPrefillFrontTasks>>, args,
           batch, plan);
}

ops::KernelNote note_qsa_front(const GpuSpec& /*gpu*/) {
  return {"qsa_front", "one warp per head, one launch",
          "heads of 256, index heads of 128, 64 rotated dims, blocks of 4; else generic"};
}

}  // namespace tessera::cuda
