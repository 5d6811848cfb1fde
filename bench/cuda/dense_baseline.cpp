// SPDX-License-Identifier: Apache-2.0
// Products of the benches through the backend's own cuBLASLt object.
#include "bench/cuda/dense_baseline.h"

#include "cuda/check.h"
#include "cuda/linear/blas.h"

namespace tessera::bench {

struct DenseBaseline::State {
  cuda::PinnedGemm& gemm = cuda::PinnedGemm::of_current_device();
  void* workspace = nullptr;

  State() { cuda::check(cudaMalloc(&workspace, cuda::PinnedGemm::kWorkspaceBytes)); }
  ~State() { cudaFree(workspace); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

DenseBaseline::DenseBaseline() {
  if (cuda::PinnedGemm::of_current_device().refusal().empty()) state_ = std::make_unique<State>();
}

DenseBaseline::~DenseBaseline() = default;

bool DenseBaseline::product(cudaStream_t stream, const void* x, const void* w, void* y, int rows,
                            int outs, int ins) {
  const cuda::GemmShape shape{.out_features = outs, .in_features = ins, .y_stride = outs};
  if (!available() || !state_->gemm.refusal(shape).empty()) return false;
  state_->gemm.run({.shape = shape,
                    .x = x,
                    .weight = w,
                    .y = y,
                    .rows = rows,
                    .workspace = state_->workspace,
                    .stream = stream});
  return true;
}

}  // namespace tessera::bench
