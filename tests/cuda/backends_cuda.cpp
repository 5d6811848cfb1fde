// SPDX-License-Identifier: Apache-2.0
// The op suite against the CUDA backend.
#include "cpu/op_fixture.h"
#include "cuda/cuda_backend.h"
#include "cuda/staged_ops.h"

namespace tessera::test {
namespace {

std::unique_ptr<ops::Ops> make_cuda() { return make_staged_ops(cuda::make_ops({})); }

std::string unusable() { return cuda::why_unusable(cuda::Options{}.device); }

}  // namespace

std::span<const Backend> backends() {
  static constexpr Backend kBackends[] = {
      {.name = "cuda", .make = make_cuda, .activation = DType::kBF16, .unusable = unusable}};
  return kBackends;
}

}  // namespace tessera::test
