// SPDX-License-Identifier: Apache-2.0
// QSA front and block selection at the released sizes: decode rows of one and of many sequences,
// prompt chunks.
#include <algorithm>
#include <string>
#include <vector>

#include "bench/cuda/harness.h"

namespace tessera::bench {
namespace {

constexpr double kBf16 = 2, kInt = 4;
constexpr double kNormFlops = 4;   // per element: square, sum, two products
constexpr int kMaxFrontSets = 64;  // inputs of few rows come from the L2 in a real step as well
constexpr auto kDecode = ops::Role::kDecode, kPrompt = ops::Role::kPrefill;
constexpr int64_t kMaxContext = 262144;

struct SelectCase {
  const char* name;
  RowsSpec rows;
  double goal_us = 0;
};

/// One layer's pages at their real distance per set: what the address translation sees matters.
std::vector<ops::QsaSelectArgs> select_args(World& world, const Rows& rows, int sets) {
  const auto count = static_cast<size_t>(rows.num_rows());
  std::vector<ops::QsaSelectArgs> args;
  for (int set = 0; set < sets; ++set)
    args.push_back(
        {.shape = kQsa,
         .cache = qsa_cache(world, kQsa, DType::kBF16, rows.num_pages()),
         .index_q = world.bf16(count * static_cast<size_t>(kQsa.index_heads * kQsa.index_dim)),
         .budget_blocks = kBudgetBlocks,
         .batch = rows.batch(),
         .blocks = reinterpret_cast<int32_t*>(world.bytes(count * kBudgetBlocks * sizeof(int32_t))),
         .counts = reinterpret_cast<int32_t*>(world.bytes(count * sizeof(int32_t))),
         .max_context = kMaxContext});
  return args;
}

ops::Cost select_cost(const RowsSpec& spec) {
  const double index_queries = kQsa.index_heads * kQsa.index_dim;
  const double visible = static_cast<double>((spec.position + spec.rows_each) / kQsa.block);
  const double rows = 1.0 * spec.sequences * spec.rows_each;
  if (visible <= kBudgetBlocks) return {.bytes_written = rows * (visible + 1) * kInt};
  return {.bytes_read = kBf16 * (spec.sequences * visible * kQsa.index_dim + rows * index_queries),
          .bytes_written = rows * (kBudgetBlocks + 1) * kInt,
          .flops = 2 * rows * visible * index_queries};
}

/// The same arguments with pages that are not aligned go to the generic kernels.
Timing generic_kernels(World& world, Report& report, const Case& data,
                       const std::vector<ops::QsaSelectArgs>& args) {
  return report.time(data, static_cast<int>(args.size()), [&](int set) {
    ops::QsaSelectArgs odd = args[static_cast<size_t>(set)];
    odd.cache.index_keys.offset -= sizeof(uint16_t);
    world.ops().qsa_select(odd);
  });
}

void measure_select(World& world, Report& report, const SelectCase& data) {
  Rows rows(world, data.rows);
  const ops::Cost cost = select_cost(data.rows);
  const Case select{
      .name = data.name, .cost = cost, .goal_us = data.goal_us, .graph = data.rows.role == kDecode};
  const int sets = world.sets_for(std::max(cost.bytes_read, 1.0));
  const auto args = select_args(world, rows, sets);
  rows.begin();
  std::optional<Timing> generic;
  if (data.rows.role == kDecode) generic = generic_kernels(world, report, select, args);
  report.measure(
      select, sets, [&](int set) { world.ops().qsa_select(args[static_cast<size_t>(set)]); },
      generic, "generic kernels");
  world.clear();
}

void bench_select(World& world, Report& report) {
  report.heading("QSA block selection");
  const auto rows = [](int sequences, int rows_each, int64_t end, ops::Role role) {
    return RowsSpec{
        .sequences = sequences, .rows_each = rows_each, .position = end - rows_each, .role = role};
  };
  constexpr int64_t kShort = 2048, kMiddle = 16384, kLong = 65536, kCrowd = 57344;
  constexpr double kLongGoal = 12, kLongestGoal = 30;
  for (const SelectCase& data : {
           SelectCase{"select 4 rows, 512 blocks (identity)", rows(1, 4, kShort, kDecode)},
           SelectCase{"select 1 row, 4 K blocks", rows(1, 1, kMiddle, kDecode)},
           SelectCase{"select 4 rows, 4 K blocks", rows(1, 4, kMiddle, kDecode)},
           SelectCase{"select 1 row, 16 K blocks", rows(1, 1, kLong, kDecode)},
           SelectCase{"select 4 rows, 16 K blocks", rows(1, 4, kLong, kDecode), kLongGoal},
           SelectCase{"select 6 rows, 16 K blocks", rows(1, 6, kLong, kDecode)},
           SelectCase{"select 4 rows, 64 K blocks", rows(1, 4, kMaxContext, kDecode), kLongestGoal},
           SelectCase{"select 8 x 4 rows, 14 K blocks", rows(8, 4, kCrowd, kDecode)},
           SelectCase{"select 32 x 4 rows, 14 K blocks", rows(32, 4, kCrowd, kDecode)},
           SelectCase{"select 64 x 1 rows, 14 K blocks", rows(64, 1, kCrowd, kDecode)},
           SelectCase{"select prompt 2048 rows, end at 16 K tokens",
                      rows(1, 2048, kMiddle, kPrompt)},
           SelectCase{"select prompt 8192 rows, end at 64 K tokens", rows(1, 8192, kLong, kPrompt)},
           SelectCase{"select prompt 8192 rows, end at 256 K tokens",
                      rows(1, 8192, kMaxContext, kPrompt)},
       })
    measure_select(world, report, data);
}

ops::QsaFrontArgs front_args(World& world, const Rows& rows, DType dtype) {
  const auto count = static_cast<size_t>(rows.num_rows());
  const auto queries = count * static_cast<size_t>(kQsa.heads * kQsa.head_dim);
  const auto kvs = count * static_cast<size_t>(kQsa.kv_heads * kQsa.head_dim);
  const auto index_dim = static_cast<size_t>(kQsa.index_dim);
  const auto index = count * static_cast<size_t>(kQsa.index_heads) * index_dim;
  const auto head = static_cast<size_t>(kQsa.head_dim);
  const auto frequencies = static_cast<size_t>(kQsa.rotary_dim) / 2;
  return {.shape = kQsa,
          .rope = {.inv_freq = world.floats(frequencies, 0.1, 0.3),
                   .axis = world.copy(std::vector<int32_t>(frequencies, 0))},
          .cache = qsa_cache(world, kQsa, dtype, rows.num_pages()),
          .q_gate = world.bf16(2 * queries),
          .k = world.bf16(kvs),
          .v = world.bf16(kvs),
          .index_qk = world.bf16(index + count * index_dim),
          .positions = world.copy(std::vector<int32_t>(count * 3, 1000)),
          .q_norm = world.floats(head, 0.1),
          .k_norm = world.floats(head, 0.1),
          .index_q_norm = world.floats(index_dim, 0.1),
          .index_k_norm = world.floats(index_dim, 0.1),
          .eps = kEps,
          .batch = rows.batch(),
          .q = world.bytes(queries * sizeof(uint16_t)),
          .index_q = world.bytes(index * sizeof(uint16_t))};
}

ops::Cost front_cost(int rows, DType dtype) {
  const double queries = kQsa.heads * kQsa.head_dim, kvs = 2.0 * kQsa.kv_heads * kQsa.head_dim;
  const double index = (kQsa.index_heads + 1.0) * kQsa.index_dim;
  const double block_key = 1.0 * kQsa.index_dim / kQsa.block;
  return {.bytes_read = rows * (kBf16 * (queries + kvs + index) + 3 * kInt),
          .bytes_written = rows * (kBf16 * (queries + index + block_key) +
                                   kvs * static_cast<double>(dtype_bytes(dtype)) + 3 * kInt),
          .flops = rows * kNormFlops * (queries + kvs + index)};
}

void bench_front(World& world, Report& report) {
  report.heading("QSA front");
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3})
    for (const int count : {1, 4, 128, 256, 8192}) {
      const ops::Role role = count <= 256 ? kDecode : kPrompt;
      const int each = role == kPrompt ? count : std::min(count, 4);
      Rows rows(world, {.sequences = count / each,
                        .rows_each = each,
                        .position = 1024,
                        .role = role,
                        .slot_bytes = qsa_ring_bytes(kQsa)});
      const Case front{.name = std::string("front ") + std::to_string(count) + " rows, " +
                               (dtype == DType::kBF16 ? "BF16" : "E4M3") + " cache",
                       .cost = front_cost(count, dtype),
                       .graph = role == kDecode};
      const int sets =
          std::min(kMaxFrontSets, world.sets_for(front.cost.bytes_read + front.cost.bytes_written));
      std::vector<ops::QsaFrontArgs> args;
      for (int set = 0; set < sets; ++set) args.push_back(front_args(world, rows, dtype));
      rows.begin();
      report.measure(front, sets,
                     [&](int set) { world.ops().qsa_front(args[static_cast<size_t>(set)]); });
      world.clear();
    }
}

const Registration kSelect{"qsa_select", bench_select};
const Registration kFront{"qsa_front", bench_front};

}  // namespace
}  // namespace tessera::bench
