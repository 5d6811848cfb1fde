// SPDX-License-Identifier: Apache-2.0
// Times the fast CPU kernels of GDN, QSA, the mixer and PLE at the released model's shapes, on
// synthetic data, next to a matrix product of the same run.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <numeric>
#include <vector>

#include "core/parallel.h"
#include "cpu/cpu_ops.h"
#include "cpu/fast/gemm_tile.h"

namespace {

using namespace tessera;

constexpr int kHidden = 2560;
constexpr int kBranches = 4;
constexpr int kRank = 320;
constexpr float kEps = 1e-6F;
constexpr double kGiga = 1e9;
constexpr double kMicro = 1e6;

std::vector<float> random_floats(size_t count, uint64_t seed) {
  std::vector<float> values(count);
  uint64_t state = seed * 2 + 1;
  for (float& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31F;
  }
  return values;
}

/// With one thread, that thread's processor time: other programs on the machine do not count.
double now() {
  timespec time{};
  clock_gettime(num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Best of several runs, in seconds: the machine is shared, and the fastest run is disturbed least.
double best_time(const std::function<void()>& work) {
  constexpr double kBudget = 0.6;
  constexpr int kLeast = 4;
  work();
  double best = 1e9;
  const double start = now();
  for (int run = 0; run < kLeast || now() - start < kBudget; ++run) {
    const double begin = now();
    work();
    best = std::min(best, now() - begin);
  }
  return best;
}

void print(const char* name, double seconds, const ops::Cost& cost) {
  std::printf("%-40s %10.1f us %8.1f GFLOP/s %7.1f GB/s\n", name, seconds * kMicro,
              cost.flops / seconds / kGiga,
              (cost.bytes_read + cost.bytes_written) / seconds / kGiga);
  std::fflush(stdout);
}

/// Each thread multiplies its own block, as the kernels here would.
void bench_gemm() {
  constexpr int kSize = 256;
  const auto a = random_floats(size_t{kSize} * kSize, 1);
  const auto b = random_floats(size_t{kSize} * kSize, 2);
  std::vector<float> c(size_t{kSize} * kSize * static_cast<size_t>(num_threads()));
  constexpr int kRepeat = 16;
  const double seconds = best_time([&] {
    parallel_for(num_threads(), 1, [&](int64_t begin, int64_t, int) {
      for (int repeat = 0; repeat < kRepeat; ++repeat)
        cpu::gemm_nn({kSize, kSize, kSize}, {a.data(), kSize}, {b.data(), kSize},
                     {c.data() + begin * kSize * kSize, kSize, false});
    });
  });
  ops::Cost cost;
  cost.flops = 2.0 * kSize * kSize * kSize * kRepeat * num_threads();
  print("matrix product 256^3 on every thread", seconds, cost);
}

struct GdnBench {
  ops::GdnShape shape{16, 48, 128, 128, 4};
  std::vector<float> qkv, z, a, b, conv, a_log, dt_bias, norm, out;
  std::vector<std::vector<std::byte>> slots{};
  std::vector<ops::RowSpan> spans{};
  ops::GdnArgs args;

  GdnBench(int sequences, int rows_each, int64_t position, ops::Role role) {
    const auto rows = static_cast<size_t>(sequences * rows_each);
    const auto heads = static_cast<size_t>(shape.value_heads);
    const auto channels = static_cast<size_t>(shape.channels());
    const size_t values = heads * static_cast<size_t>(shape.value_dim);
    qkv = random_floats(rows * channels, 3);
    z = random_floats(rows * values, 4);
    a = random_floats(rows * heads, 5);
    b = random_floats(rows * heads, 6);
    conv = random_floats(channels * static_cast<size_t>(shape.conv_kernel), 7);
    a_log = random_floats(heads, 8);
    dt_bias = random_floats(heads, 9);
    norm = random_floats(static_cast<size_t>(shape.value_dim), 10);
    out.resize(rows * values);
    constexpr int kRingSlots = 16;
    const size_t ring_bytes = kRingSlots * channels * sizeof(float);
    for (int sequence = 0; sequence < sequences; ++sequence) {
      slots.emplace_back(ring_bytes + values * static_cast<size_t>(shape.key_dim) * sizeof(float));
      spans.push_back({sequence * rows_each, rows_each, position, slots.back().data(), nullptr});
    }
    args.shape = shape;
    args.qkv = qkv.data();
    args.z = z.data();
    args.a = a.data();
    args.b = b.data();
    args.conv_weight = conv.data();
    args.a_log = a_log.data();
    args.dt_bias = dt_bias.data();
    args.norm = norm.data();
    args.eps = kEps;
    args.batch = {spans, static_cast<int>(rows), role};
    args.conv_ring = {0, channels * sizeof(float), kRingSlots, shape.conv_kernel - 1};
    args.matrix_offset = ring_bytes;
    args.out = out.data();
  }
};

void bench_gdn(ops::Ops& ops, const char* name, int sequences, int rows, ops::Role role) {
  GdnBench bench(sequences, rows, ops::kGdnChunk, role);
  print(name, best_time([&] { ops.gdn(bench.args); }), cost(bench.args));
}

struct QsaBench {
  static constexpr int kBudget = 512;
  ops::QsaShape shape{24, 2, 256, 4, 128, 4, 64};
  std::vector<float> pool, q, q_gate, index_q, out;
  std::vector<int32_t> pages, blocks, counts;
  std::vector<std::byte> slot;
  ops::RowSpan span;
  ops::QsaCache cache;
  ops::RowBatch batch;

  QsaBench(int rows, int64_t position, DType dtype, ops::Role role) {
    const auto num_pages = static_cast<size_t>((position + rows) / ops::kPageTokens + 1);
    const size_t kv_floats = size_t{ops::kPageTokens} * static_cast<size_t>(shape.kv_heads) *
                             static_cast<size_t>(shape.head_dim);
    const size_t index_floats =
        static_cast<size_t>(shape.blocks_per_page()) * static_cast<size_t>(shape.index_dim);
    const size_t page_bytes = (2 * kv_floats + index_floats) * dtype_bytes(dtype);
    pool = random_floats(num_pages * page_bytes / sizeof(float), 11);
    if (dtype == DType::kBF16) {
      auto* words = reinterpret_cast<uint16_t*>(pool.data());
      const auto source = random_floats(num_pages * page_bytes / sizeof(uint16_t), 12);
      for (size_t at = 0; at < source.size(); ++at) words[at] = float_to_bf16(source[at]);
    }
    pages.resize(num_pages);
    for (size_t page = 0; page < num_pages; ++page)
      pages[page] = static_cast<int32_t>((page * 7 + 3) % num_pages);
    if (num_pages % 7 == 0) std::iota(pages.begin(), pages.end(), 0);
    auto* base = reinterpret_cast<std::byte*>(pool.data());
    cache.keys = {base, page_bytes, 0, dtype};
    cache.values = {base, page_bytes, kv_floats * dtype_bytes(dtype), dtype};
    cache.index_keys = {base, page_bytes, 2 * kv_floats * dtype_bytes(dtype), dtype};
    span = {0, rows, position, slot.data(), pages.data()};
    batch = {{&span, 1}, rows, role};
    const auto count = static_cast<size_t>(rows);
    const size_t width = static_cast<size_t>(shape.heads) * static_cast<size_t>(shape.head_dim);
    q = random_floats(count * width, 13);
    q_gate = random_floats(2 * count * width, 14);
    index_q = random_floats(
        count * static_cast<size_t>(shape.index_heads) * static_cast<size_t>(shape.index_dim), 15);
    out.resize(count * width);
    blocks.resize(count * kBudget);
    counts.resize(count);
  }

  ops::QsaSelectArgs select() {
    return {.shape = shape,
            .cache = cache,
            .index_q = index_q.data(),
            .budget_blocks = kBudget,
            .batch = batch,
            .blocks = blocks.data(),
            .counts = counts.data()};
  }
  ops::QsaAttendArgs attend() {
    return {.shape = shape,
            .cache = cache,
            .q = q.data(),
            .q_gate = q_gate.data(),
            .blocks = blocks.data(),
            .counts = counts.data(),
            .budget_blocks = kBudget,
            .batch = batch,
            .out = out.data()};
  }
};

void bench_qsa(ops::Ops& ops, const char* what, int rows, int64_t position, DType dtype,
               ops::Role role) {
  QsaBench bench(rows, position, dtype, role);
  const auto select = bench.select();
  const auto attend = bench.attend();
  char name[80];
  std::snprintf(name, sizeof name, "select %s at %ld, %s", what, static_cast<long>(position),
                dtype_name(dtype));
  print(name, best_time([&] { ops.qsa_select(select); }), cost(select));
  std::snprintf(name, sizeof name, "attend %s at %ld, %s", what, static_cast<long>(position),
                dtype_name(dtype));
  print(name, best_time([&] { ops.qsa_attend(attend); }), cost(attend));
}

void bench_mixer(ops::Ops& ops, const char* name, int rows, ops::Role role) {
  constexpr size_t kWide = size_t{kHidden} * kBranches;
  const auto count = static_cast<size_t>(rows);
  auto wide = random_floats(count * kWide, 16);
  const auto norm = random_floats(kWide, 17);
  const auto bf16 = [](size_t size, uint64_t seed) {
    const auto values = random_floats(size, seed);
    std::vector<uint16_t> words(size);
    for (size_t at = 0; at < size; ++at) words[at] = float_to_bf16(values[at] * 0x1p-5F);
    return words;
  };
  const auto down = bf16(kRank * kWide, 18), up = bf16(kRank * kWide, 19);
  const auto inject = bf16(kBranches * kWide, 20);
  std::vector<float> mixed(count * kHidden), logits(count * kBranches);
  ops::MixerArgs args;
  args.wide = wide.data();
  args.weights = {norm.data(),
                  {down.data(), DType::kBF16, nullptr, kRank, static_cast<int>(kWide)},
                  {up.data(), DType::kBF16, nullptr, static_cast<int>(kWide), kRank},
                  {inject.data(), DType::kBF16, nullptr, kBranches, static_cast<int>(kWide)}};
  args.mixed = mixed.data();
  args.inject = logits.data();
  args.rows = rows;
  args.branches = kBranches;
  args.hidden = kHidden;
  args.eps = kEps;
  args.role = role;
  print(name, best_time([&] { ops.mixer(args); }), cost(args));
  const ops::CombineArgs combine{.wide = wide.data(),
                                 .out = mixed.data(),
                                 .inject = logits.data(),
                                 .rows = rows,
                                 .branches = kBranches,
                                 .hidden = kHidden};
  print("  and its combine", best_time([&] { ops.combine(combine); }), cost(combine));
}

}  // namespace

/// Usage: cpu_rows_bench [threads]
int main(int argc, char** argv) {
  using ops::Role;
  if (argc > 1) set_num_threads(std::atoi(argv[1]));
  const auto ops = cpu::make_fast_ops();
  std::printf("%d threads, synthetic data, released shapes, best of several runs\n", num_threads());
  bench_gemm();
  bench_gdn(*ops, "gdn prefill 512 rows", 1, 512, Role::kPrefill);
  bench_gdn(*ops, "gdn decode 1 row", 1, 1, Role::kDecode);
  bench_gdn(*ops, "gdn decode 4 rows of one sequence", 1, 4, Role::kDecode);
  bench_gdn(*ops, "gdn decode 8 sequences", 8, 1, Role::kDecode);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t position : {2048, 32768}) {
      bench_qsa(*ops, "prefill 256 rows", 256, position, dtype, Role::kPrefill);
      bench_qsa(*ops, "decode 1 row", 1, position, dtype, Role::kDecode);
      bench_qsa(*ops, "decode 4 rows", 4, position, dtype, Role::kDecode);
    }
  }
  bench_mixer(*ops, "mixer prefill 512 rows", 512, Role::kPrefill);
  bench_mixer(*ops, "mixer decode 1 row", 1, Role::kDecode);
  return 0;
}
