// SPDX-License-Identifier: Apache-2.0
// Products with stored weights at the released sizes: decode rows, where every weight is read once,
// and prompts.
#include <string>
#include <vector>

#include "bench/cuda/dense_baseline.h"
#include "bench/cuda/harness.h"

namespace tessera::bench {
namespace {

constexpr auto kDecode = ops::Role::kDecode, kPrompt = ops::Role::kPrefill;
/// Time over floor that is good enough: 80 % of the copy rate, 70 % below kLargeBytes.
constexpr double kLargeGoal = 1.25, kSmallGoal = 1 / 0.7;
constexpr double kLargeBytes = 64e6;
constexpr int kGoalRows = 16;

struct Product {
  const char* name;
  std::vector<int> outs;
  int ins;
  ops::Output output = ops::Output::kActivation;
};

constexpr int kVocab = 248320;
constexpr int kValueWidth = kGdn.value_heads * kGdn.value_dim;
constexpr int kQueryWidth = kQsa.heads * kQsa.head_dim;
constexpr int kKvWidth = kQsa.kv_heads * kQsa.head_dim;

const std::vector<Product> kProducts = {
    {"GDN q,k,v,z,a,b",
     {kGdn.channels(), kValueWidth, kGdn.value_heads, kGdn.value_heads},
     kHidden},
    {"QSA q,gate,k,v,index",
     {2 * kQueryWidth, kKvWidth, kKvWidth, (kQsa.index_heads + 1) * kQsa.index_dim},
     kHidden},
    {"out", {kHidden}, kValueWidth},
    {"head", {kVocab}, kHidden, ops::Output::kFloat},
};

/// Buffers of one launch.
struct Launch {
  std::vector<ops::LinearPart> parts{};
  void* x = nullptr;
  int rows = 0;
  ops::Role role = kDecode;

  ops::LinearArgs args() const { return {.x = x, .parts = parts, .rows = rows, .role = role}; }
};

Launch make_launch(World& world, const Product& product, DType dtype, int rows, ops::Role role) {
  const auto count = static_cast<size_t>(rows);
  Launch launch{
      .x = world.bf16(count * static_cast<size_t>(product.ins)), .rows = rows, .role = role};
  for (const int outs : product.outs)
    launch.parts.push_back({world.weight(dtype, outs, product.ins),
                            world.bytes(count * static_cast<size_t>(outs) * sizeof(float)),
                            product.output});
  return launch;
}

ops::Cost cost_of(const Product& product, DType dtype, int rows) {
  constexpr double kActivation = 2;
  double outs = 0;
  for (const int out : product.outs) outs += out;
  const double weights = outs * product.ins;
  const double y_bytes = product.output == ops::Output::kFloat ? sizeof(float) : kActivation;
  return {.bytes_read =
              weights * static_cast<double>(dtype_bytes(dtype)) + kActivation * rows * product.ins,
          .bytes_written = y_bytes * rows * outs,
          .flops = 2.0 * rows * weights};
}

/// One library product per part. BF16 outputs always: the least it could write.
std::optional<Timing> library_time(World& world, Report& report, DenseBaseline& dense,
                                   const Case& data, const std::vector<Launch>& launches) {
  if (!dense.available() || launches[0].parts[0].weight.dtype != DType::kBF16) return {};
  return report.time(data, static_cast<int>(launches.size()), [&](int set) {
    const Launch& launch = launches[static_cast<size_t>(set)];
    for (const ops::LinearPart& part : launch.parts)
      dense.product(world.stream(), launch.x, part.weight.data, part.y, launch.rows,
                    part.weight.out_features, part.weight.in_features);
  });
}

void measure(World& world, Report& report, DenseBaseline& dense, const Product& product,
             DType dtype, int rows, ops::Role role) {
  Case data{.name = std::string(product.name) + " " + dtype_name(dtype) +
                    (role == kDecode ? " decode " : " prompt ") + std::to_string(rows) + " rows",
            .cost = cost_of(product, dtype, rows)};
  data.graph = role == kDecode;
  if (role == kDecode && rows <= kGoalRows && dtype == DType::kBF16)
    data.goal_ratio = data.cost.bytes_read >= kLargeBytes ? kLargeGoal : kSmallGoal;
  std::vector<Launch> launches;
  const int sets = world.sets_for(data.cost.bytes_read + data.cost.bytes_written);
  for (int set = 0; set < sets; ++set)
    launches.push_back(make_launch(world, product, dtype, rows, role));
  const std::optional<Timing> library = library_time(world, report, dense, data, launches);
  report.measure(
      data, sets, [&](int set) { world.ops().linear(launches[static_cast<size_t>(set)].args()); },
      library, "cuBLASLt");
  world.clear();
}

void bench_linear(World& world, Report& report) {
  report.heading("Products with stored weights");
  DenseBaseline dense;
  for (const Product& product : kProducts)
    for (const int rows : {1, 2, 4, 6, 8, 16, 32, 64, 128, 256})
      measure(world, report, dense, product, DType::kBF16, rows, kDecode);
  for (const Product& product : kProducts)
    for (const int rows : {1, 4, 8, 16, 32, 64, 128, 256})
      measure(world, report, dense, product, DType::kF8E4M3, rows, kDecode);
  for (const Product& product : kProducts)
    for (const int rows : {64, 2048, 8192}) {
      if (product.output == ops::Output::kFloat) continue;  // prompts need few logits
      for (const DType dtype : {DType::kBF16, DType::kF8E4M3})
        measure(world, report, dense, product, dtype, rows, kPrompt);
    }
}

void bench_embed(World& world, Report& report) {
  report.heading("Embedding");
  const ops::LinearWeight table = world.weight(DType::kBF16, kVocab, kHidden);
  for (const int rows : {1, 4, 32, 8192}) {
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    for (size_t row = 0; row < ids.size(); ++row)
      ids[row] = static_cast<int32_t>(row * 7919 % kVocab);
    const double row_bytes = 2.0 * kHidden;
    const Case data{.name = "embed " + std::to_string(rows) + " rows",
                    .cost = {.bytes_read = rows * row_bytes,
                             .bytes_written = rows * kBranches * row_bytes,
                             .flops = 0}};
    const int32_t* device_ids = world.copy(ids);
    void* wide = world.bytes(static_cast<size_t>(rows) * kBranches * kHidden * sizeof(uint16_t));
    report.measure(data, 1, [&](int) {
      world.ops().embed(
          {.ids = device_ids, .table = table, .wide = wide, .rows = rows, .branches = kBranches});
    });
  }
  world.clear();
}

const Registration kLinear{"linear", bench_linear};
const Registration kEmbed{"embed", bench_embed};

}  // namespace
}  // namespace tessera::bench
