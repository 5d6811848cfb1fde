// SPDX-License-Identifier: Apache-2.0
// Opens OpenBLAS with dlopen, so that nothing links to it, and keeps the best of some products.
#include "eval/gemm_yardstick.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace tessera {
namespace {

// The C interface of BLAS (netlib cblas.h): row-major 101, no transpose 111, transpose 112.
using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                       const float* a, int lda, const float* b, int ldb, float beta, float* c,
                       int ldc);
using SetThreads = void (*)(int threads);
constexpr int kRowMajor = 101;
constexpr int kNoTrans = 111;
constexpr int kTrans = 112;

// The shape of a prefill chunk against a large projection of the released model.
constexpr int kRows = 512;
constexpr int kOut = 6144;
constexpr int kIn = 2560;
constexpr int kRepeats = 8;

std::vector<float> ramp(size_t count) {
  constexpr size_t kPeriod = 251;
  std::vector<float> values(count);
  for (size_t index = 0; index < count; ++index)
    values[index] = static_cast<float>(index % kPeriod) / static_cast<float>(kPeriod) - 0.5F;
  return values;
}

}  // namespace

GemmYardstick measure_gemm_yardstick(int threads) {
  // Never unloaded: the library keeps worker threads that wait in its code.
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return {};
  const auto sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
  const auto set_threads = reinterpret_cast<SetThreads>(dlsym(library, "openblas_set_num_threads"));
  if (sgemm == nullptr || set_threads == nullptr) return {};
  set_threads(threads);

  const std::vector<float> x = ramp(size_t{kRows} * kIn);
  const std::vector<float> w = ramp(size_t{kOut} * kIn);
  std::vector<float> y(size_t{kRows} * kOut);
  double best = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    sgemm(kRowMajor, kNoTrans, kTrans, kRows, kOut, kIn, 1.0F, x.data(), kIn, w.data(), kIn, 0.0F,
          y.data(), kOut);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2.0 * kRows * kOut * kIn / seconds);
  }
  return {best, "OpenBLAS sgemm, " + std::to_string(threads) + " threads"};
}

}  // namespace tessera
