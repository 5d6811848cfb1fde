// SPDX-License-Identifier: Apache-2.0
// Products with stored weights at the released model's shapes, on synthetic weights: decode against
// the read bandwidth, prefill against OpenBLAS sgemm, all measured in the same run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "core/arena.h"
#include "core/bandwidth.h"
#include "core/huge_buffer.h"
#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/linear_kernels.h"

#if TESSERA_OPENBLAS
#include <cblas.h>
#endif

namespace {

using namespace tessera;
using namespace tessera::cpu;

constexpr double kGiga = 1e9;
constexpr double kMicro = 1e6;
constexpr double kPercent = 100;
constexpr size_t kPoolBytes = size_t{384} << 20;  // far beyond any cache, so decode reads memory
constexpr int kPrefillRows = 512;
constexpr DType kTypes[] = {DType::kBF16, DType::kF8E4M3};

struct Shape {
  const char* name = "";
  int out = 0;
  int in = 0;
};
constexpr Shape kShapes[] = {
    {"gdn qkv", 10240, 2560},    {"gdn z", 6144, 2560},         {"gdn/qsa out", 2560, 6144},
    {"qsa q+gate", 12288, 2560}, {"expert gate/up", 640, 2560}, {"expert down", 2560, 640},
    {"mixer down", 320, 10240},  {"mixer up", 10240, 320},
};

/// Processor time when one thread runs, so that other work on the machine only disturbs caches and
/// memory; else wall time.
double now() {
  if (num_threads() == 1)
    return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Shortest of many runs: on a shared machine the least disturbed one.
double best_seconds(double budget, const std::function<void()>& work) {
  constexpr int kLeastRuns = 3;
  double best = std::numeric_limits<double>::max();
  const double begin = now();
  for (int run = 0; run < kLeastRuns || now() - begin < budget; ++run) {
    const double start = now();
    work();
    best = std::min(best, now() - start);
  }
  return best;
}

class Random {
 public:
  uint32_t bits() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<uint32_t>(state_ >> 32);
  }
  float uniform() { return static_cast<float>(static_cast<int32_t>(bits())) * 0x1p-31F; }
  std::vector<float> values(size_t count) {
    std::vector<float> result(count);
    for (float& value : result) value = uniform();
    return result;
  }

 private:
  uint64_t state_ = 1;
};

/// Weights cut from one large pool; every call moves on, so that none is cached.
class WeightPool {
 public:
  WeightPool() : bytes_(kPoolBytes), scale_(size_t{1} << 16, 0.01F) {}

  void fill(DType dtype) {
    constexpr uint8_t kMagnitude = 0x7F;
    Random random;
    dtype_ = dtype;
    for (size_t at = 0; at < kPoolBytes; at += sizeof(uint16_t)) {
      uint16_t value = float_to_bf16(random.uniform());
      if (dtype == DType::kF8E4M3) {
        value = static_cast<uint16_t>(random.bits());
        if ((value & kMagnitude) == kMagnitude || (value >> 8 & kMagnitude) == kMagnitude)
          value = 0;
      }
      std::memcpy(bytes_.data() + at, &value, sizeof(value));
    }
  }
  ops::LinearWeight next(int out, int in) {
    ops::LinearWeight weight;
    weight.dtype = dtype_;
    weight.scale = scale_.data();
    weight.out_features = out;
    weight.in_features = in;
    if (next_ + weight.bytes() > kPoolBytes) next_ = 0;
    weight.data = bytes_.data() + next_;
    next_ += align_up(weight.bytes());
    return weight;
  }
  DType dtype() const { return dtype_; }

 private:
  HugeBuffer bytes_;
  std::vector<float> scale_;
  size_t next_ = 0;
  DType dtype_ = DType::kBF16;
};

void bench_decode(WeightPool& pool, int threads) {
  constexpr int kRows[] = {1, 2, 4, 8};
  constexpr double kBudget = 0.3;
  Random random;
  const std::vector<float> x = random.values(size_t{8} * 10240);
  std::vector<float> y(size_t{8} * 12288);
  for (const int rows : kRows) {
    const double ceiling = measure_read_bandwidth(threads);
    std::printf("\ndecode, %s, %d rows; read ceiling %.1f GB/s\n", dtype_name(pool.dtype()), rows,
                ceiling / kGiga);
    for (const Shape& shape : kShapes) {
      double bytes = 0;
      const double seconds = best_seconds(kBudget, [&] {
        const LinearJob job{pool.next(shape.out, shape.in), x.data(), shape.in, y.data(),
                            shape.out};
        bytes = static_cast<double>(job.weight.bytes());
        linear_decode({&job, 1}, rows);
      });
      std::printf("  %-15s %5d x %5d %9.1f us %6.1f GB/s %4.0f %%\n", shape.name, shape.out,
                  shape.in, seconds * kMicro, bytes / seconds / kGiga,
                  bytes / seconds / ceiling * kPercent);
    }
  }
}

/// Flop/s of OpenBLAS for the same product, 0 when it is not there.
double yardstick(const Shape& shape, int rows, const std::vector<float>& x, std::vector<float>& y) {
#if TESSERA_OPENBLAS
  Random random;
  const auto w = random.values(static_cast<size_t>(shape.out) * static_cast<size_t>(shape.in));
  const double seconds = best_seconds(0.5, [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, shape.out, shape.in, 1.0F, x.data(),
                shape.in, w.data(), shape.in, 0.0F, y.data(), shape.out);
  });
  return 2.0 * rows * shape.out * shape.in / seconds;
#else
  return 0.0 * (shape.out + rows) * static_cast<double>(x.size() + y.size());
#endif
}

void bench_prefill(WeightPool& pool, int rows) {
  Random random;
  Arena scratch;
  std::printf("\nprefill, %s, %d rows\n", dtype_name(pool.dtype()), rows);
  for (const Shape& shape : kShapes) {
    const auto count = static_cast<size_t>(rows);
    const auto x = random.values(count * static_cast<size_t>(shape.in));
    std::vector<float> y(count * static_cast<size_t>(shape.out));
    const double blas = yardstick(shape, rows, x, y);
    const double seconds = best_seconds(0.5, [&] {
      scratch.reset();
      const LinearJob job{pool.next(shape.out, shape.in), x.data(), shape.in, y.data(), shape.out};
      linear_prefill({&job, 1}, rows, scratch);
    });
    const double flops = 2.0 * rows * shape.out * shape.in / seconds;
    std::printf("  %-15s %5d x %5d %9.1f us %6.1f GFLOP/s", shape.name, shape.out, shape.in,
                seconds * kMicro, flops / kGiga);
    if (blas > 0) std::printf("  OpenBLAS %6.1f  %4.0f %%", blas / kGiga, flops / blas * kPercent);
    std::printf("\n");
  }
}

/// The whole MoE block of one layer: top 10 of `count` experts and a shared one.
void bench_experts(WeightPool& pool, int rows, ops::Role role, double ceiling) {
  constexpr int kHidden = 2560, kWidth = 640, kTopK = 10, kExperts = 64;
  const auto count = static_cast<size_t>(rows);
  Random random;
  Arena scratch;
  const auto x = random.values(count * kHidden), shared = random.values(count);
  const std::vector<float> weights(count * kTopK, 1.0F / kTopK);
  std::vector<float> out(count * kHidden);
  std::vector<int32_t> ids;
  for (int row = 0; row < rows; ++row)
    for (int slot = 0; slot < kTopK; ++slot) ids.push_back((row * kTopK + slot) % kExperts);
  const double expert_bytes =
      3.0 * kHidden * kWidth * static_cast<double>(dtype_bytes(pool.dtype()));
  const double distinct = std::min(rows * kTopK, kExperts) + 1.0;
  const double seconds = best_seconds(0.5, [&] {
    std::vector<ops::ExpertWeight> experts;
    for (int expert = 0; expert <= kExperts; ++expert)
      experts.push_back(
          {pool.next(kWidth, kHidden), pool.next(kWidth, kHidden), pool.next(kHidden, kWidth)});
    scratch.reset();
    cpu::fast_experts({.x = x.data(),
                       .ids = ids.data(),
                       .weights = weights.data(),
                       .shared_logit = shared.data(),
                       .experts = std::span(experts).first(kExperts),
                       .shared = experts.back(),
                       .out = out.data(),
                       .rows = rows,
                       .top_k = kTopK,
                       .role = role},
                      scratch);
  });
  const double flops = 2.0 * rows * (kTopK + 1) * 3 * kHidden * kWidth;
  std::printf("experts, %s, %4d rows %s %9.1f us %6.1f GFLOP/s %6.1f GB/s (%.0f %% of read)\n",
              dtype_name(pool.dtype()), rows, role == ops::Role::kDecode ? "decode " : "prefill",
              seconds * kMicro, flops / seconds / kGiga, expert_bytes * distinct / seconds / kGiga,
              expert_bytes * distinct / seconds / ceiling * kPercent);
}

}  // namespace

/// Usage: cpu_linear_bench [threads]
int main(int argc, char** argv) {
  if (argc > 1) set_num_threads(std::atoi(argv[1]));
  const int threads = num_threads();
#if TESSERA_OPENBLAS
  openblas_set_num_threads(threads);
#endif
  std::printf("%s, %d threads; synthetic weights; best of repeated runs\n", cpu::simd_level(),
              threads);
  WeightPool pool;
  for (const DType dtype : kTypes) {
    pool.fill(dtype);
    bench_decode(pool, threads);
    for (const int rows : {16, 64, kPrefillRows}) bench_prefill(pool, rows);
    std::printf("\n");
    const double ceiling = measure_read_bandwidth(threads);
    for (const int rows : {1, 4}) bench_experts(pool, rows, ops::Role::kDecode, ceiling);
    for (const int rows : {1, kPrefillRows})
      bench_experts(pool, rows, ops::Role::kPrefill, ceiling);
  }
  return 0;
}
