// SPDX-License-Identifier: Apache-2.0
// Sparse attention at the released head geometry: decode rows of one and of many sequences, prompt
// chunks, at different overlaps of neighbouring rows.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/cuda/harness.h"
#include "cuda/qsa_attend/qsa_attend.h"

namespace tessera::bench {
namespace {

constexpr double kBf16 = 2;
constexpr auto kDecode = ops::Role::kDecode, kPrompt = ops::Role::kPrefill;
constexpr int64_t kContext = 65536;
constexpr double kSame = 0.9, kApart = 0;  // of a row's blocks, shared with the row before

struct AttendCase {
  int sequences = 1;
  int rows_each = 1;
  double overlap = kSame;
  DType dtype = DType::kBF16;
  ops::Role role = kDecode;
  double goal_us = 0;
  int64_t end = kContext;
};

std::string name_of(const AttendCase& data) {
  std::string name = data.role == kPrompt ? "attend prompt " : "attend ";
  if (data.sequences > 1) name += std::to_string(data.sequences) + " x ";
  name += std::to_string(data.rows_each) + (data.rows_each == 1 ? " row" : " rows");
  if (data.end != kContext) name += " at " + std::to_string(data.end);
  if (data.rows_each > 1)
    name += ", overlap " + std::to_string(std::lround(data.overlap * 100)) + " %";
  return name + (data.dtype == DType::kBF16 ? "" : ", E4M3");
}

/// Every distinct block once: what sharing at its best would move.
ops::Cost cost_of(const AttendCase& data, double distinct_blocks, int blocks_per_row) {
  const double rows = 1.0 * data.sequences * data.rows_each, width = kQsa.heads * kQsa.head_dim;
  const double block = 2.0 * kQsa.kv_heads * kQsa.block * kQsa.head_dim *
                       static_cast<double>(dtype_bytes(data.dtype));
  return {.bytes_read = distinct_blocks * block + rows * 2 * width * kBf16,
          .bytes_written = rows * width * kBf16,
          .flops = rows * blocks_per_row * kQsa.block * width * 4};
}

void measure_attend(World& world, Report& report, const AttendCase& data) {
  const int64_t position = data.end - data.rows_each;
  const int64_t complete = (position + 1) / kQsa.block;
  Rows rows(world, {.sequences = data.sequences,
                    .rows_each = data.rows_each,
                    .position = position,
                    .role = data.role});
  const auto count = static_cast<size_t>(rows.num_rows());
  const size_t width = static_cast<size_t>(kQsa.heads) * static_cast<size_t>(kQsa.head_dim);
  const BlockLists lists =
      block_lists(world, data.sequences, data.rows_each, kBudgetBlocks, complete, data.overlap);
  const Case attend{.name = name_of(data),
                    .cost = cost_of(data, lists.distinct,
                                    static_cast<int>(std::min<int64_t>(kBudgetBlocks, complete))),
                    .goal_us = data.goal_us,
                    .graph = data.role == kDecode};
  const int sets = data.role == kPrompt ? 1 : world.sets_for(attend.cost.bytes_read);
  std::vector<ops::QsaAttendArgs> args;
  for (int set = 0; set < sets; ++set)
    args.push_back({.shape = kQsa,
                    .cache = qsa_cache(world, kQsa, data.dtype, rows.num_pages()),
                    .q = world.bf16(count * width),
                    .q_gate = world.bf16(2 * count * width),
                    .blocks = lists.blocks,
                    .counts = lists.counts,
                    .budget_blocks = kBudgetBlocks,
                    .batch = rows.batch(),
                    .out = world.bytes(count * width * sizeof(uint16_t))});
  rows.begin();
  std::optional<Timing> generic;
  if (data.role == kDecode)
    generic = report.time(attend, sets, [&](int set) {
      cuda::launch_qsa_attend_any(world.context(), args[static_cast<size_t>(set)]);
    });
  report.measure(
      attend, sets, [&](int set) { world.ops().qsa_attend(args[static_cast<size_t>(set)]); },
      generic, "generic kernel");
  world.clear();
}

void bench_attend(World& world, Report& report) {
  report.heading("QSA attention, 65536 tokens of context");
  constexpr double kOneGoal = 8, kManyGoal = 75, kManyApartGoal = 190;
  constexpr int kChunk = 8192;
  for (const AttendCase& data : {
           AttendCase{.rows_each = 1},
           AttendCase{.rows_each = 4, .goal_us = kOneGoal},
           AttendCase{.rows_each = 6},
           AttendCase{.rows_each = 4, .end = 1024},
           AttendCase{.sequences = 2, .rows_each = 4},
           AttendCase{.sequences = 4, .rows_each = 4},
           AttendCase{.sequences = 8, .rows_each = 4},
           AttendCase{.sequences = 16, .rows_each = 4},
           AttendCase{.sequences = 32, .rows_each = 4, .goal_us = kManyGoal},
           AttendCase{
               .sequences = 32, .rows_each = 4, .overlap = kApart, .goal_us = kManyApartGoal},
           AttendCase{.sequences = 64, .rows_each = 1},
           AttendCase{.rows_each = 4, .dtype = DType::kF8E4M3},
           AttendCase{.sequences = 32, .rows_each = 4, .dtype = DType::kF8E4M3},
           AttendCase{.sequences = 32, .rows_each = 4, .overlap = kApart, .dtype = DType::kF8E4M3},
           AttendCase{.rows_each = kChunk, .role = kPrompt},
           AttendCase{.rows_each = kChunk, .overlap = kApart, .role = kPrompt},
           AttendCase{.rows_each = kChunk, .dtype = DType::kF8E4M3, .role = kPrompt},
           AttendCase{.rows_each = 1024, .role = kPrompt},
       })
    measure_attend(world, report, data);
}

const Registration kAttend{"qsa_attend", bench_attend};

}  // namespace
}  // namespace tessera::bench
