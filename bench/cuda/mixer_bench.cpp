// SPDX-License-Identifier: Apache-2.0
// Gated Residual at the released sizes: mixer and combine, decode and prompt rows.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bench/cuda/dense_baseline.h"
#include "bench/cuda/harness.h"

namespace tessera::bench {
namespace {

constexpr int kWide = kBranches * kHidden;
constexpr double kBf16 = 2, kFloat = 4;
constexpr double kSmallRowsGoal = 2.5;  // time over floor, up to kSmallRows rows
constexpr int kSmallRows = 32;
/// Few rows would need thousands of sets to leave the L2; in the model they are there as well.
constexpr int kMostSets = 64;

ops::MixerArgs mixer_args(World& world, int rows, ops::Role role) {
  const auto count = static_cast<size_t>(rows);
  return {.wide = world.bf16(count * kWide),
          .normed = world.bf16(count * kWide),
          .weights = {.norm = world.floats(kWide, 0.1),
                      .down = world.weight(DType::kBF16, kRank, kWide, kBranches),
                      .up = world.weight(DType::kBF16, kWide, kRank),
                      .inject = world.weight(DType::kBF16, kBranches, kWide, kBranches)},
          .mixed = world.bf16(count * kHidden),
          .inject = world.floats(count * kBranches),
          .rows = rows,
          .branches = kBranches,
          .hidden = kHidden,
          .eps = kEps,
          .role = role};
}

/// N is read, not R: combine has written it.
ops::Cost mixer_cost(int rows) {
  constexpr double kWeights = 2.0 * kRank * kWide + 1.0 * kBranches * kWide;
  return {.bytes_read = kBf16 * (kWeights + 1.0 * rows * kWide),
          .bytes_written = rows * (kBf16 * kHidden + kFloat * kBranches),
          .flops = 2.0 * rows * kWeights};
}

ops::CombineArgs combine_args(World& world, int rows) {
  const auto count = static_cast<size_t>(rows);
  return {.wide = world.bf16(count * kWide),
          .out = world.bf16(count * kHidden),
          .inject = world.floats(count * kBranches),
          .next_norm = world.floats(kWide, 0.1),
          .normed = world.bf16(count * kWide),
          .eps = kEps,
          .rows = rows,
          .branches = kBranches,
          .hidden = kHidden};
}

ops::Cost combine_cost(int rows) {
  return {.bytes_read = rows * (kBf16 * (kWide + kHidden) + kFloat * kBranches) + kFloat * kWide,
          .bytes_written = 2.0 * rows * kBf16 * kWide,
          .flops = 10.0 * rows * kWide};
}

std::string name_of(const char* what, int rows, ops::Role role) {
  return std::string(what) + (role == ops::Role::kDecode ? " decode " : " prompt ") +
         std::to_string(rows) + " rows";
}

/// The two products alone, without norm, gates and mean.
Timing dense_products(World& world, Report& report, DenseBaseline& dense,
                      const std::vector<ops::MixerArgs>& args) {
  const auto count = static_cast<size_t>(args[0].rows);
  void* low = world.bf16(count * kRank);
  void* gates = world.bf16(count * kWide);
  return report.time({}, static_cast<int>(args.size()), [&](int set) {
    const ops::MixerArgs& one = args[static_cast<size_t>(set)];
    dense.product(world.stream(), one.normed, one.weights.down.data, low, one.rows, kRank, kWide);
    dense.product(world.stream(), low, one.weights.up.data, gates, one.rows, kWide, kRank);
  });
}

void bench_mixer(World& world, Report& report) {
  report.heading("Gated Residual");
  DenseBaseline dense;
  struct Rows {
    int rows;
    ops::Role role;
  };
  constexpr auto kDecode = ops::Role::kDecode, kPrompt = ops::Role::kPrefill;
  for (const auto [rows, role] :
       {Rows{1, kDecode}, Rows{2, kDecode}, Rows{4, kDecode}, Rows{8, kDecode}, Rows{16, kDecode},
        Rows{32, kDecode}, Rows{64, kDecode}, Rows{128, kDecode}, Rows{256, kDecode},
        Rows{512, kPrompt}, Rows{2048, kPrompt}, Rows{8192, kPrompt}}) {
    Case mixer{.name = name_of("mixer", rows, role), .cost = mixer_cost(rows)};
    if (role == kDecode && rows <= kSmallRows) mixer.goal_ratio = kSmallRowsGoal;
    mixer.graph = role == kDecode;
    const int sets = world.sets_for(mixer.cost.bytes_read);
    std::vector<ops::MixerArgs> args;
    for (int set = 0; set < sets; ++set) args.push_back(mixer_args(world, rows, role));
    std::optional<Timing> baseline;
    if (dense.available()) baseline = dense_products(world, report, dense, args);
    report.measure(
        mixer, sets, [&](int set) { world.ops().mixer(args[static_cast<size_t>(set)]); }, baseline,
        "cuBLASLt products alone");
    world.clear();
  }
  for (const int rows : {1, 4, 32, 256, 8192}) {
    const Case combine{.name = "combine and norm " + std::to_string(rows) + " rows",
                       .cost = combine_cost(rows)};
    const int sets =
        std::min(kMostSets, world.sets_for(combine.cost.bytes_read + combine.cost.bytes_written));
    std::vector<ops::CombineArgs> args;
    for (int set = 0; set < sets; ++set) args.push_back(combine_args(world, rows));
    report.measure(combine, sets,
                   [&](int set) { world.ops().combine(args[static_cast<size_t>(set)]); });
    world.clear();
  }
}

const Registration kRegistration{"mixer", bench_mixer};

}  // namespace
}  // namespace tessera::bench
