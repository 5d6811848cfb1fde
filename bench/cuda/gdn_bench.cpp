// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet at the released sizes: verify rows with replay, plain decode rows, prompts.
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "bench/cuda/harness.h"
#include "core/arena.h"
#include "cuda/check.h"

namespace tessera::bench {
namespace {

constexpr double kBf16 = 2, kFloat = 4;
constexpr int kDraftedRows = 6;  // what a slot holds pending
constexpr double kChannels = kGdn.channels(), kHeads = kGdn.value_heads;
constexpr double kValues = kHeads * kGdn.value_dim, kCells = kValues * kGdn.key_dim;

/// One layer's parts of a slot, at `offset`.
struct Slot {
  ops::RingRef ring{};
  size_t matrix = 0;
  size_t accepted = 0;
  size_t pending = 0;
  size_t end = 0;

  explicit Slot(size_t offset) {
    const auto channels = static_cast<size_t>(kGdn.channels());
    ring = make_ring(offset, channels * sizeof(uint16_t), kGdn.conv_kernel - 1);
    matrix = align_up(offset + ring.entry_bytes * static_cast<size_t>(ring.slots));
    // A line more, for the generic kernels' unaligned matrix.
    accepted = align_up(matrix + static_cast<size_t>(kCells) * sizeof(float) + sizeof(float));
    pending = align_up(accepted + sizeof(int32_t));
    end = align_up(pending + ops::GdnPending{kGdn}.bytes(kDraftedRows));
  }
};

struct GdnCase {
  std::string name{};
  RowsSpec rows{};
  int replayed = -1;  // negative: plain decoding or a prompt
  double goal_us = 0;
  double goal_ratio = 0;
};

ops::Cost gdn_cost(const GdnCase& data) {
  const double sequences = data.rows.sequences, rows = sequences * data.rows.rows_each;
  const double pending = static_cast<double>(ops::GdnPending{kGdn}.row_floats()) * kFloat;
  ops::Cost cost;
  cost.bytes_read = sequences * kCells * kFloat +
                    rows * (kBf16 * (kChannels + kValues) + 2 * kHeads * kFloat) +
                    kChannels * kGdn.conv_kernel * kFloat;
  cost.bytes_written =
      sequences * kCells * kFloat + rows * kBf16 * (kValues + kChannels);  // out, ring
  if (data.replayed >= 0) {
    cost.bytes_read += sequences * data.replayed * pending;
    cost.bytes_written += rows * pending;
  }
  if (data.rows.role == ops::Role::kPrefill) {
    // Three products with the state; four half-empty ones within the chunk.
    cost.bytes_written -= rows * kBf16 * kChannels;
    cost.flops = rows * kHeads *
                 (6.0 * kGdn.key_dim * kGdn.value_dim +
                  2.0 * ops::kGdnChunk * (kGdn.key_dim + kGdn.value_dim));
  }
  return cost;
}

/// Arguments for each set: own rows, own place in the slots.
std::vector<ops::GdnArgs> gdn_args(World& world, const GdnCase& data, const Rows& rows, int sets) {
  const auto count = static_cast<size_t>(rows.num_rows());
  const auto heads = static_cast<size_t>(kGdn.value_heads);
  const auto values = static_cast<size_t>(kValues), channels = static_cast<size_t>(kChannels);
  std::vector<ops::GdnArgs> args;
  for (int set = 0; set < sets; ++set) {
    const Slot slot(args.empty() ? 0 : static_cast<size_t>(set) * Slot(0).end);
    ops::GdnArgs each;
    each.shape = kGdn;
    each.qkv = world.bf16(count * channels);
    each.z = world.bf16(count * values);
    each.a = world.floats(count * heads);
    each.b = world.floats(count * heads);
    each.conv_weight = world.floats(channels * static_cast<size_t>(kGdn.conv_kernel), 0.5);
    each.a_log = world.floats(heads);
    each.dt_bias = world.floats(heads);
    each.norm = world.floats(static_cast<size_t>(kGdn.value_dim));
    each.eps = kEps;
    each.batch = rows.batch();
    each.conv_ring = slot.ring;
    each.matrix_offset = slot.matrix;
    each.out = world.bytes(count * values * sizeof(uint16_t));
    each.verify = data.replayed >= 0;
    each.pending_offset = slot.pending;
    each.pending_rows = kDraftedRows;
    each.accepted_offset = slot.accepted;
    const int32_t accepted = data.replayed;
    for (const ops::RowSpan& span : rows.batch().spans)
      if (each.verify) world.copy_in(span.slot + slot.accepted, &accepted, sizeof accepted);
    args.push_back(each);
  }
  return args;
}

void measure_gdn(World& world, Report& report, const GdnCase& data, bool with_generic) {
  const ops::Cost cost = gdn_cost(data);
  const int sets = world.sets_for(cost.bytes_read + cost.bytes_written);
  RowsSpec spec = data.rows;
  spec.slot_bytes = static_cast<size_t>(sets) * Slot(0).end;
  Rows rows(world, spec);
  // Random pending rows would let the matrix grow without bound before the first launch's own.
  for (const ops::RowSpan& span : rows.batch().spans)
    cuda::check(cudaMemsetAsync(span.slot, 0, spec.slot_bytes, world.stream()));
  const auto args = gdn_args(world, data, rows, sets);
  rows.begin();
  const Case measured{.name = data.name,
                      .cost = cost,
                      .goal_us = data.goal_us,
                      .goal_ratio = data.goal_ratio,
                      .graph = data.rows.role == ops::Role::kDecode};
  std::optional<Timing> generic;
  if (with_generic) {
    // A matrix that is not aligned goes to the generic kernels.
    generic = report.time(measured, sets, [&](int set) {
      ops::GdnArgs odd = args[static_cast<size_t>(set)];
      odd.matrix_offset += sizeof(float);
      world.ops().gdn(odd);
    });
  }
  report.measure(
      measured, sets, [&](int set) { world.ops().gdn(args[static_cast<size_t>(set)]); }, generic,
      "generic kernel");
  world.clear();
}

void bench_gdn(World& world, Report& report) {
  constexpr int64_t kPosition = 1000;
  constexpr double kVerifyGoal = 7, kBatchRatio = 1.5;
  constexpr int kGoalBatch = 8, kGenericRows = 2048;
  report.heading("GDN decode");
  const auto decode = [&](int sequences, int rows, int replayed) {
    GdnCase data{.name = std::to_string(sequences) + " x " + std::to_string(rows) + " rows",
                 .rows = {.sequences = sequences, .rows_each = rows, .position = kPosition},
                 .replayed = replayed};
    if (replayed >= 0) data.name += " + replay of " + std::to_string(replayed);
    if (sequences == 1 && rows <= 4) data.goal_us = kVerifyGoal;
    if (sequences >= kGoalBatch && rows <= 4) data.goal_ratio = kBatchRatio;
    measure_gdn(world, report, data, sequences == 1 && rows == 4);
  };
  for (const int sequences : {1, 2, 4, 8, 16, 32}) decode(sequences, 4, 4);
  for (const int replayed : {0, 1, 3}) decode(1, 4, replayed);
  for (const int sequences : {1, 8, 32}) decode(sequences, 6, 6);
  for (const int sequences : {1, 2, 8, 32, 128}) decode(sequences, 1, -1);
  decode(1, 4, -1);

  report.heading("GDN prompts");
  const auto prompt = [&](int sequences, int rows) {
    measure_gdn(world, report,
                {.name = "prompt " + std::to_string(sequences) + " x " + std::to_string(rows),
                 .rows = {.sequences = sequences,
                          .rows_each = rows,
                          .position = 0,
                          .role = ops::Role::kPrefill}},
                sequences == 1 && rows == kGenericRows);
  };
  for (const int rows : {64, 512, 2048, 8192}) prompt(1, rows);
  prompt(4, 2048);
  prompt(16, 512);
}

const Registration kRegistration{"gdn", bench_gdn};

}  // namespace
}  // namespace tessera::bench
