// SPDX-License-Identifier: Apache-2.0
// N-gram memory and sampling at the released sizes.
#include <algorithm>
#include <string>
#include <vector>

#include "bench/cuda/harness.h"
#include "cuda/check.h"

namespace tessera::bench {
namespace {

constexpr double kBf16 = 2, kFloat = 4, kId = 8;
constexpr int kWide = kBranches * kHidden;
constexpr int kTaps = 4, kDilation = 3, kReach = (kTaps - 1) * kDilation;
constexpr int kHeads = 16, kRowDim = 160;
constexpr int kVocab = 248320;
constexpr int64_t kPosition = 5000;
constexpr int kMostSets = 64;  // few rows: constants come from the L2 in a real step as well

ops::PleMixArgs mix_args(World& world, const Rows& rows, size_t ring_offset) {
  const auto count = static_cast<size_t>(rows.num_rows());
  return {.key = world.bf16(count * kWide),
          .value = world.bf16(count * kHidden),
          .norm_key = world.floats(kWide, 0.1),
          .norm_query = world.floats(kWide, 0.1),
          .norm_conv = world.floats(kWide, 0.1),
          .conv_weight = world.floats(size_t{kWide} * kTaps, 0.5),
          .wide = world.bf16(count * kWide),
          .batch = rows.batch(),
          .conv_ring = make_ring(ring_offset, kWide * sizeof(uint16_t), kReach),
          .branches = kBranches,
          .hidden = kHidden,
          .conv_kernel = kTaps,
          .dilation = kDilation,
          .eps = kEps};
}

ops::Cost mix_cost(const RowsSpec& spec) {
  const double rows = 1.0 * spec.sequences * spec.rows_each;
  const double stored = 1.0 * spec.sequences * std::min(spec.rows_each, kReach);
  // Rows read 3, 6 and 9 back: one row three entries, three and more rows all nine.
  const double older = 1.0 * spec.sequences * std::min(kReach, kDilation * spec.rows_each);
  return {.bytes_read = kBf16 * (rows * (2.0 * kWide + kHidden) + older * kWide) +
                        kFloat * kWide * (3 + kTaps),
          .bytes_written = kBf16 * kWide * (rows + stored),
          .flops = rows * kWide * (10 + 2.0 * kTaps)};
}

/// The element kernels, as a yardstick: a ring off alignment is not for the vector kernels.
Timing element_kernels(World& world, Report& report, const Case& data,
                       const std::vector<ops::PleMixArgs>& args) {
  return report.time(data, static_cast<int>(args.size()), [&](int set) {
    ops::PleMixArgs odd = args[static_cast<size_t>(set)];
    odd.conv_ring.offset += sizeof(uint16_t);
    world.ops().ple_mix(odd);
  });
}

void measure_mix(World& world, Report& report, const char* name, RowsSpec spec) {
  const Case mix{.name = name, .cost = mix_cost(spec), .graph = spec.role == ops::Role::kDecode};
  const int sets =
      std::min(kMostSets, world.sets_for(mix.cost.bytes_read + mix.cost.bytes_written));
  const size_t ring_bytes =
      make_ring(0, kWide * sizeof(uint16_t), kReach).slots * (kWide * sizeof(uint16_t));
  const size_t stride = ring_bytes + 256;  // room for the shifted ring
  spec.slot_bytes = stride * static_cast<size_t>(sets);
  Rows rows(world, spec);
  std::vector<ops::PleMixArgs> args;
  for (int set = 0; set < sets; ++set)
    args.push_back(mix_args(world, rows, static_cast<size_t>(set) * stride));
  rows.begin();
  const Timing elements = element_kernels(world, report, mix, args);
  report.measure(
      mix, sets, [&](int set) { world.ops().ple_mix(args[static_cast<size_t>(set)]); }, elements,
      "element kernels");
  world.clear();
}

/// Addresses and gather follow each other in every launch.
void measure_lookup(World& world, Report& report, const char* name, RowsSpec spec, DType dtype) {
  constexpr int64_t kTableRows = 8 << 20;  // more than any cache holds
  NgramHash hash{.ngram_size = 3, .heads_per_ngram = kHeads / 2, .eos = 1};
  hash.multipliers = {0x123456789ABCDEF, 0x13579BDF02468AD, 0x0FEDCBA98765433};
  hash.primes.assign(kHeads, kTableRows / kHeads);
  for (int head = 0; head < kHeads; ++head) hash.offsets.push_back(head * (kTableRows / kHeads));
  std::vector<int64_t> constants = hash.multipliers;
  constants.insert(constants.end(), hash.primes.begin(), hash.primes.end());
  constants.insert(constants.end(), hash.offsets.begin(), hash.offsets.end());
  hash.device_constants = world.copy(constants);
  const size_t elements = static_cast<size_t>(kTableRows) * kRowDim;
  std::byte* data = world.bytes(elements * dtype_bytes(dtype));
  world.fill(dtype, data, elements, 1);
  const ops::NgramTable table{.shards = {data},
                              .dtype = dtype,
                              .rows_per_shard = kTableRows,
                              .num_rows = kTableRows,
                              .row_dim = kRowDim};
  const ops::RingRef ring = make_ring(0, sizeof(int64_t), hash.ngram_size - 1);
  spec.slot_bytes = ring.entry_bytes * static_cast<size_t>(ring.slots);
  Rows rows(world, spec);
  rows.begin();
  const auto count = static_cast<size_t>(rows.num_rows());
  const double entries = 1.0 * static_cast<double>(count) * kHeads;
  constexpr int kSets = 16;
  std::vector<int32_t*> ids;
  for (int set = 0; set < kSets; ++set) {
    std::vector<int32_t> tokens;
    for (size_t row = 0; row < count; ++row)
      tokens.push_back(
          static_cast<int32_t>((row * 7919 + static_cast<size_t>(set) * 104729) % kVocab));
    ids.push_back(world.copy(tokens));
  }
  auto* table_rows = reinterpret_cast<int64_t*>(world.bytes(count * kHeads * sizeof(int64_t)));
  void* out = world.bytes(count * kHeads * kRowDim * sizeof(uint16_t));
  const Case lookup{
      .name = name,
      .cost = {.bytes_read = entries * (kRowDim * static_cast<double>(dtype_bytes(dtype)) + kId),
               .bytes_written = entries * (kRowDim * kBf16 + kId)}};
  report.measure(lookup, kSets, [&](int set) {
    world.ops().ngram_ids({.ids = ids[static_cast<size_t>(set)],
                           .batch = rows.batch(),
                           .token_ring = ring,
                           .hash = &hash,
                           .table_rows = table_rows});
    world.ops().ngram_gather({.table_rows = table_rows,
                              .table = &table,
                              .out = out,
                              .rows = rows.num_rows(),
                              .heads = kHeads});
  });
  world.clear();
}

void bench_ple(World& world, Report& report) {
  constexpr auto kDecode = ops::Role::kDecode, kPrompt = ops::Role::kPrefill;
  const auto rows = [](int sequences, int rows_each, ops::Role role) {
    return RowsSpec{
        .sequences = sequences, .rows_each = rows_each, .position = kPosition, .role = role};
  };
  report.heading("N-gram memory");
  measure_lookup(world, report, "address and gather 4 rows BF16", rows(1, 4, kDecode),
                 DType::kBF16);
  measure_lookup(world, report, "address and gather 4 rows E4M3", rows(1, 4, kDecode),
                 DType::kF8E4M3);
  measure_lookup(world, report, "address and gather 8192 rows BF16", rows(1, 8192, kPrompt),
                 DType::kBF16);
  measure_lookup(world, report, "address and gather 8192 rows E4M3", rows(1, 8192, kPrompt),
                 DType::kF8E4M3);
  measure_mix(world, report, "mix 1 row", rows(1, 1, kDecode));
  measure_mix(world, report, "mix 4 rows", rows(1, 4, kDecode));
  measure_mix(world, report, "mix 8 x 4 rows", rows(8, 4, kDecode));
  measure_mix(world, report, "mix 32 x 4 rows", rows(32, 4, kDecode));
  measure_mix(world, report, "mix 256 x 1 rows", rows(256, 1, kDecode));
  measure_mix(world, report, "mix prompt 2048 rows", rows(1, 2048, kPrompt));
  measure_mix(world, report, "mix prompt 8192 rows", rows(1, 8192, kPrompt));
}

struct SampleCase {
  const char* name;
  int rows;
  ops::SampleRow settings;
};

/// Each call ends with the results in host memory, as in a round.
void measure_sample(World& world, Report& report, const SampleCase& data) {
  const auto count = static_cast<size_t>(data.rows);
  const double bytes = kFloat * kVocab * data.rows;
  const Case sample{.name = data.name, .cost = {.bytes_read = bytes}, .graph = false};
  const int sets = world.sets_for(bytes);
  std::vector<float*> logits;
  for (int set = 0; set < sets; ++set) logits.push_back(world.floats(count * kVocab, 2.5));
  std::vector<ops::SampleRow> rows(count, data.settings);
  for (size_t row = 0; row < count; ++row) {
    rows[row].valid_vocab = kVocab;
    rows[row].seed = row;
  }
  std::vector<ops::SampledToken> results(count);
  std::vector<float> host(count * kVocab);
  const Timing copies = report.time(sample, sets, [&](int set) {
    world.copy_out(host.data(), logits[static_cast<size_t>(set)], host.size() * sizeof(float));
  });
  report.measure(
      sample, sets,
      [&](int set) {
        world.ops().sample({.logits = logits[static_cast<size_t>(set)],
                            .vocab = kVocab,
                            .rows = rows,
                            .edits = {},
                            .results = results});
      },
      copies, "copying the logits out");
  world.clear();
}

void bench_sample(World& world, Report& report) {
  report.heading("Sampling, launch to result");
  const ops::SampleRow greedy{.temperature = 0};
  const ops::SampleRow usual{.temperature = 0.6F, .top_k = 20, .top_p = 0.95F};
  const ops::SampleRow nucleus{.temperature = 1, .top_p = 0.95F};
  const ops::SampleRow plain{.temperature = 1};
  const ops::SampleRow listed{.temperature = 0, .top_logprobs = ops::kMaxTopTokens};
  for (const SampleCase& data :
       {SampleCase{"greedy 1 row", 1, greedy}, SampleCase{"greedy 4 rows", 4, greedy},
        SampleCase{"greedy 256 rows", 256, greedy},
        SampleCase{"top-k 20, top-p 0.95, 1 row", 1, usual},
        SampleCase{"top-k 20, top-p 0.95, 4 rows", 4, usual},
        SampleCase{"top-k 20, top-p 0.95, 256 rows", 256, usual},
        SampleCase{"top-p 0.95, 1 row", 1, nucleus}, SampleCase{"temperature 1, 1 row", 1, plain},
        SampleCase{"greedy, 20 log-probabilities, 1 row", 1, listed}})
    measure_sample(world, report, data);
}

const Registration kPle{"ple", bench_ple};
const Registration kSample{"sample", bench_sample};

}  // namespace
}  // namespace tessera::bench
