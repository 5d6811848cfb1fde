// SPDX-License-Identifier: Apache-2.0
// Mixture of experts at the released sizes: router, experts of generated rows and of prompts. Every
// call routes anew over all 512 experts, so that their weights come from memory.
#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bench/cuda/dense_baseline.h"
#include "bench/cuda/harness.h"

namespace tessera::bench {
namespace {

constexpr double kBf16 = 2, kFloat = 4;
constexpr double kExpertParameters = 3.0 * kHidden * kExpertWidth;
/// Goal of generated rows: kLaunchUs + bytes / (kShareOfCopy * kCopyRate).
constexpr double kLaunchUs = 5, kShareOfCopy = 0.8, kCopyRate = 4.27e12;
constexpr int kGoalRows = 8;
constexpr double kPromptGoal = 1.8;  // time over floor
constexpr int kMostSets = 24;

double bytes_of(DType dtype) { return static_cast<double>(dtype_bytes(dtype)); }

/// One layer of experts, and some shared ones to rotate.
struct Layer {
  DType dtype = DType::kBF16;
  std::vector<ops::ExpertWeight> experts{};
  std::vector<ops::ExpertWeight> shared{};  // BF16, as in the released FP8 layout
};

Layer make_layer(World& world, DType dtype) {
  constexpr int kSharedCopies = 12;
  return {.dtype = dtype,
          .experts = world.experts(dtype, kExperts, kHidden, kExpertWidth),
          .shared = world.experts(DType::kBF16, kSharedCopies, kHidden, kExpertWidth)};
}

struct Call {
  ops::ExpertsArgs args;
  std::vector<int32_t> ids{};  // on the host
};

Call make_call(World& world, const Layer& layer, int rows, ops::Role role, int set) {
  const auto count = static_cast<size_t>(rows);
  std::mt19937 generator(static_cast<unsigned>(97 * rows + set));
  std::vector<int32_t> order(kExperts), ids;
  std::iota(order.begin(), order.end(), 0);
  for (int row = 0; row < rows; ++row) {
    std::shuffle(order.begin(), order.end(), generator);
    ids.insert(ids.end(), order.begin(), order.begin() + kTopK);
  }
  const ops::ExpertWeight& shared = layer.shared[static_cast<size_t>(set) % layer.shared.size()];
  return {.args = {.x = world.bf16(count * kHidden),
                   .ids = world.copy(ids),
                   .weights = world.floats(count * kTopK, 0.02, 0.1),
                   .shared_logit = world.floats(count),
                   .experts = layer.experts,
                   .shared = shared,
                   .out = world.bf16(count * kHidden),
                   .rows = rows,
                   .top_k = kTopK,
                   .role = role},
          .ids = ids};
}

/// Weights of the distinct experts once, activations once.
ops::Cost experts_cost(const Call& call, DType dtype) {
  const double rows = call.args.rows;
  const std::set<int32_t> used(call.ids.begin(), call.ids.end());
  return {.bytes_read =
              kExpertParameters * (static_cast<double>(used.size()) * bytes_of(dtype) + kBf16) +
              rows * (kBf16 * kHidden + kTopK * 2 * kFloat),
          .bytes_written = rows * kBf16 * kHidden,
          .flops = 2 * kExpertParameters * rows * (kTopK + 1)};
}

/// The products alone, with cuBLASLt, one call per matrix and expert; the sizes of the groups are
/// known to the host and rows are not gathered.
std::optional<Timing> one_by_one(World& world, Report& report, DenseBaseline& dense,
                                 const std::vector<Call>& calls, bool graph) {
  if (!dense.available()) return {};
  const auto rows = static_cast<size_t>(calls[0].args.rows);
  void* inner = world.bf16(rows * 2 * kExpertWidth);
  void* results = world.bf16(rows * kHidden);
  const auto both = [&](const ops::ExpertWeight& expert, const void* x, int count) {
    dense.product(world.stream(), x, expert.gate.data, inner, count, 2 * kExpertWidth, kHidden);
    dense.product(world.stream(), inner, expert.down.data, results, count, kHidden, kExpertWidth);
  };
  Case data;
  data.graph = graph;
  return report.time(data, static_cast<int>(calls.size()), [&](int set) {
    const Call& call = calls[static_cast<size_t>(set)];
    std::vector<int> counts(kExperts, 0);
    for (const int32_t id : call.ids) ++counts[static_cast<size_t>(id)];
    both(call.args.shared, call.args.x, call.args.rows);
    for (size_t expert = 0; expert < counts.size(); ++expert)
      if (counts[expert] > 0) both(call.args.experts[expert], call.args.x, counts[expert]);
  });
}

void bench_experts(World& world, Report& report) {
  DenseBaseline dense;
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    report.heading(dtype == DType::kBF16 ? "Experts, BF16" : "Experts, FP8 (shared one BF16)");
    const Layer layer = make_layer(world, dtype);
    const auto run = [&](ops::Role role, int rows) {
      const bool decode = role == ops::Role::kDecode;
      std::vector<Call> calls{make_call(world, layer, rows, role, 0)};
      Case data{.name = std::string("experts ") + (decode ? "decode " : "prompt ") +
                        std::to_string(rows) + " rows",
                .cost = experts_cost(calls[0], dtype)};
      data.graph = decode;
      if (decode && rows <= kGoalRows)
        data.goal_us = kLaunchUs + 1e6 * data.cost.bytes_read / (kShareOfCopy * kCopyRate);
      if (!decode) data.goal_ratio = kPromptGoal;
      const int sets = std::min(kMostSets, world.sets_for(data.cost.bytes_read));
      for (int set = 1; set < sets; ++set)
        calls.push_back(make_call(world, layer, rows, role, set));
      std::optional<Timing> baseline;
      const bool worth_it = !decode || rows <= kGoalRows;
      if (dtype == DType::kBF16 && worth_it)
        baseline = one_by_one(world, report, dense, calls, decode);
      report.measure(
          data, sets, [&](int set) { world.ops().experts(calls[static_cast<size_t>(set)].args); },
          baseline, "cuBLASLt products one by one");
    };
    for (const int rows : {1, 2, 4, 8, 16, 32, 64, 128, 256}) run(ops::Role::kDecode, rows);
    for (const int rows : {64, 512, 2048, 4096, 8192}) run(ops::Role::kPrefill, rows);
    world.clear();
  }
}

void bench_router(World& world, Report& report) {
  report.heading("Router");
  struct Rows {
    int rows;
    ops::Role role;
  };
  constexpr auto kDecode = ops::Role::kDecode, kPrompt = ops::Role::kPrefill;
  constexpr double kWeights = (kExperts + 1.0) * kHidden;
  for (const auto [rows, role] : {Rows{1, kDecode}, Rows{4, kDecode}, Rows{8, kDecode},
                                  Rows{32, kDecode}, Rows{128, kDecode}, Rows{8192, kPrompt}}) {
    const auto count = static_cast<size_t>(rows);
    Case data{.name = std::string("router ") + (role == kDecode ? "decode " : "prompt ") +
                      std::to_string(rows) + " rows",
              .cost = {.bytes_read = kBf16 * (kWeights + 1.0 * rows * kHidden),
                       .bytes_written = rows * (kFloat * (kExperts + 1) + 2 * kFloat * kTopK),
                       .flops = 2.0 * rows * kWeights}};
    data.graph = role == kDecode;
    const int sets = std::min(kMostSets * 2, world.sets_for(data.cost.bytes_read));
    std::vector<ops::RouterArgs> args;
    for (int set = 0; set < sets; ++set)
      args.push_back(
          {.x = world.bf16(count * kHidden),
           .gate = world.weight(DType::kBF16, kExperts, kHidden),
           .shared_gate = world.weight(DType::kBF16, 1, kHidden),
           .logits = world.floats(count * kExperts),
           .shared_logit = world.floats(count),
           .ids = reinterpret_cast<int32_t*>(world.bytes(count * kTopK * sizeof(int32_t))),
           .weights = world.floats(count * kTopK),
           .rows = rows,
           .num_experts = kExperts,
           .top_k = kTopK,
           .role = role});
    report.measure(data, sets,
                   [&](int set) { world.ops().router(args[static_cast<size_t>(set)]); });
    world.clear();
  }
}

const Registration kRouter{"router", bench_router};
const Registration kExpertsBench{"experts", bench_experts};

}  // namespace
}  // namespace tessera::bench
