// SPDX-License-Identifier: Apache-2.0
// Frontier bench: prefill and decode speed as a function of context, on forks so that the frontier
// itself is built only once.
#include <sys/resource.h>
#include <tessera/bench.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "core/bandwidth.h"
#include "core/logit_math.h"
#include "core/parallel.h"
#include "eval/bench_draft.h"
#include "eval/bench_texts.h"
#include "eval/gemm_yardstick.h"
#include "eval/profiling_ops.h"
#include "eval/synthetic.h"
#include "runtime/backend.h"
#include "runtime/loaded_model.h"
#include "runtime/scoped_sequence.h"

namespace tessera {
namespace {

constexpr int kDefaultContexts[] = {128, 512, 2048, 8192, 32768};
constexpr int kSweepContext = 512;  // all depths at every context take long
constexpr int kWarmUpTokens = 256;
constexpr double kKibibyte = 1024;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * kKibibyte;
}

std::vector<OpTiming> op_timings(const ProfilingOps& profile) {
  std::vector<OpTiming> timings;
  for (const auto& [op, total] : profile.totals()) {
    const double bytes = total.cost.bytes_read + total.cost.bytes_written;
    timings.push_back({.op = op,
                       .seconds = total.seconds,
                       .bytes_per_second = bytes / total.seconds,
                       .flops = total.cost.flops / total.seconds});
  }
  std::sort(timings.begin(), timings.end(),
            [](const OpTiming& a, const OpTiming& b) { return a.seconds > b.seconds; });
  return timings;
}

class FrontierBench {
 public:
  FrontierBench(LoadedModel& model, const BenchOptions& options)
      : model_(model), options_(options), profile_(model.ops()) {}

  Result<void> run(const std::vector<int>& contexts, BenchReport& report);

 private:
  bool on_device() const { return !model_.ops().memory().on_host(); }
  /// Counts costs and, on the host, takes the time of every op; a device would wait after each.
  void profile(bool on) {
    model_.replace_ops(on ? static_cast<ops::Ops&>(profile_) : model_.ops());
  }
  Result<void> count_decode_cost(SequenceId frontier, FrontierRow& row);
  Result<void> step(SequenceId sequence, int32_t& token);
  Result<void> warm_up();
  Result<void> prefill_to(SequenceId sequence, int context, FrontierRow& row);
  Result<void> decode_from(SequenceId frontier, FrontierRow& row);

  LoadedModel& model_;
  const BenchOptions& options_;
  ProfilingOps profile_;
  std::vector<int32_t> ids_{};
};

/// Touches weights, buffers and pages once, so that first-use costs stay out of the numbers.
Result<void> FrontierBench::warm_up() {
  Result<ScopedSequence> sequence = ScopedSequence::create(model_.store());
  if (!sequence) return fail(sequence.error());
  const auto count = std::min(ids_.size(), static_cast<size_t>(kWarmUpTokens));
  if (auto status = model_.prefill(sequence->id(), std::span(ids_).first(count)); !status)
    return status;
  FrontierRow ignored;
  return decode_from(sequence->id(), ignored);
}

Result<void> FrontierBench::prefill_to(SequenceId sequence, int context, FrontierRow& row) {
  const auto begin = static_cast<size_t>(model_.store().length(sequence));
  const auto count = static_cast<size_t>(context) - begin;
  profile_.clear();
  profile(!on_device());
  const auto start = std::chrono::steady_clock::now();
  if (auto status = model_.prefill(sequence, std::span(ids_).subspan(begin, count)); !status)
    return status;
  // A device is done when something of the launch has come back.
  std::vector<float> logits(static_cast<size_t>(model_.config().vocab_size));
  if (on_device()) model_.logits(0, 1, logits.data());
  const double seconds = seconds_since(start) - profile_.overhead_seconds();
  row.prefill_tokens_per_second = static_cast<double>(count) / seconds;
  row.prefill_flops = profile_.total_cost().flops / seconds;
  return {};
}

/// One greedy token, drawn as the engine does. Reading the text's own ids instead would hide the
/// cost of the head.
Result<void> FrontierBench::step(SequenceId sequence, int32_t& token) {
  constexpr int32_t kFirstRow = 0;
  const SequenceRows work{.sequence = sequence, .ids = {&token, 1}};
  auto status = model_.run({&work, 1}, ops::Role::kDecode, {&kFirstRow, 1});
  if (!status) return status;
  const ops::SampleRow greedy{.temperature = 0.0F, .valid_vocab = model_.config().vocab_size};
  ops::SampledToken drawn;
  model_.sample(0, {.rows = {&greedy, 1}, .results = {&drawn, 1}});
  if (drawn.status != ops::SampleStatus::kDrawn)
    return fail({.code = Errc::kNumerics, .what = "no finite logit in the bench"});
  token = drawn.token;
  return {};
}

/// Bytes of one decoded token on a device, in a step of its own that is not timed.
Result<void> FrontierBench::count_decode_cost(SequenceId frontier, FrontierRow& row) {
  Result<SequenceId> forked = model_.store().fork(frontier);
  if (!forked) return fail(forked.error());
  const ScopedSequence sequence(model_.store(), *forked);
  int32_t token = ids_.front();
  profile_.clear();
  profile(true);
  auto status = step(sequence.id(), token);
  profile(false);
  const ops::Cost cost = profile_.total_cost();
  row.decode_bytes_per_token = cost.bytes_read + cost.bytes_written;
  return status;
}

Result<void> FrontierBench::decode_from(SequenceId frontier, FrontierRow& row) {
  if (on_device()) {
    if (auto status = count_decode_cost(frontier, row); !status) return status;
  }
  Result<SequenceId> forked = model_.store().fork(frontier);
  if (!forked) return fail(forked.error());
  const ScopedSequence sequence(model_.store(), *forked);
  int32_t token = ids_.front();
  std::vector<double> seconds;
  profile_.clear();
  profile(!on_device());
  for (int count = 0; count < options_.decode_tokens; ++count) {
    const auto start = std::chrono::steady_clock::now();
    const double overhead = profile_.overhead_seconds();
    if (auto status = step(sequence.id(), token); !status) return status;
    seconds.push_back(seconds_since(start) - (profile_.overhead_seconds() - overhead));
  }
  const auto middle = seconds.begin() + static_cast<ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  row.decode_tokens_per_second = 1.0 / *middle;
  row.decode_kernels = model_.ops().repeated_kernels();
  if (!on_device()) {
    const ops::Cost cost = profile_.total_cost();
    row.decode_bytes_per_token = (cost.bytes_read + cost.bytes_written) / options_.decode_tokens;
  }
  row.decode_bytes_per_second = row.decode_bytes_per_token * row.decode_tokens_per_second;
  return {};
}

Result<void> FrontierBench::run(const std::vector<int>& contexts, BenchReport& report) {
  ids_ = random_ids(static_cast<size_t>(contexts.back()), model_.config().vocab_size);
  if (auto status = warm_up(); !status) return status;
  Result<ScopedSequence> sequence = ScopedSequence::create(model_.store());
  if (!sequence) return fail(sequence.error());
  report.on_device = on_device();
  for (const int context : contexts) {
    if (options_.on_progress) options_.on_progress("context " + std::to_string(context));
    FrontierRow row{.context = context};
    if (auto status = prefill_to(sequence->id(), context, row); !status) return status;
    report.prefill_ops = op_timings(profile_);
    if (auto status = decode_from(sequence->id(), row); !status) return status;
    if (on_device()) {
      report.frontiers.push_back(row);
      continue;
    }
    // The machine's speed drifts: the ceiling is the best that any moment of the run has shown.
    report.ceiling.read_bytes_per_second =
        std::max(report.ceiling.read_bytes_per_second, measure_read_bandwidth(num_threads()));
    report.decode_ops = op_timings(profile_);
    row.peak_rss_bytes = peak_rss_bytes();
    report.frontiers.push_back(row);
  }
  return {};
}

/// Ascending, each leaving room for the generated tokens.
Result<std::vector<int>> plan_contexts(const BenchOptions& options, int max_context) {
  std::vector<int> contexts = options.contexts;
  const int room = max_context - options.decode_tokens;
  if (contexts.empty() && options.draft && options.draft->depths.empty())
    contexts.push_back(std::min(kSweepContext, room));
  if (contexts.empty())
    for (const int context : kDefaultContexts) contexts.push_back(std::min(context, room));
  std::sort(contexts.begin(), contexts.end());
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  if (!contexts.empty() && contexts.front() > 0 && contexts.back() <= room) return contexts;
  return fail({.code = Errc::kContextLimit,
               .what = "bench contexts do not fit",
               .expected = "contexts of 1 to " + std::to_string(room) + " tokens",
               .found = contexts.empty() ? "none" : std::to_string(contexts.back()),
               .hint = std::to_string(options.decode_tokens) + " tokens are generated at each"});
}

}  // namespace

MachineCeiling measure_ceiling(int threads) {
  set_num_threads(threads);
  const int used = num_threads();
  const GemmYardstick gemm = measure_gemm_yardstick(used);
  return {.threads = used,
          .copy_bytes_per_second = measure_copy_bandwidth(used),
          .read_bytes_per_second = measure_read_bandwidth(used),
          .gemm_flops = gemm.flops,
          .gemm_name = gemm.name};
}

/// Copy rate of a device's memory, bytes read plus bytes written.
MachineCeiling measure_device_ceiling(Memory& memory) {
  constexpr size_t kBytes = size_t{1} << 30;
  constexpr int kCopies = 20;
  const MemoryBlock from(memory, kBytes), to(memory, kBytes);
  std::byte last{};
  const auto run = [&](int copies) {
    const auto start = std::chrono::steady_clock::now();
    for (int count = 0; count < copies; ++count) memory.copy(to.data(), from.data(), kBytes);
    memory.copy_out(&last, to.data(), sizeof(last));  // waits for all of them
    return seconds_since(start);
  };
  memory.zero(from.data(), kBytes);
  run(1);
  const double rate = 2.0 * kBytes * kCopies / run(kCopies);
  return {.threads = 1, .copy_bytes_per_second = rate, .read_bytes_per_second = rate};
}

Result<BenchReport> run_bench(const BenchOptions& options) {
  if (options.decode_tokens < 1)
    return fail({.code = Errc::kInvalidArgument,
                 .what = "decode_tokens out of range",
                 .expected = "at least 1",
                 .found = std::to_string(options.decode_tokens)});
  if (auto status = check_draft_bench(options); !status) return fail(std::move(status.error()));
  EngineOptions engine = options.engine;
  engine.max_sequences = 2;  // the frontier and its fork
  if (options.draft)
    engine.max_sequences = std::max(engine.max_sequences, largest_batch(*options.draft));
  SyntheticModel synthetic;
  Result<std::unique_ptr<LoadedModel>> model;
  if (options.synthetic == SyntheticWeights::kNone) {
    model = LoadedModel::load(engine);
  } else {
    // Weights take a while: a device that cannot be used is said first.
    if (auto backend = make_backend(engine); !backend) return fail(backend.error());
    if (options.on_progress) options.on_progress("generating synthetic weights");
    synthetic = make_synthetic_model(options.synthetic, options.synthetic_layers,
                                     options.draft.has_value());
    engine.model_dir.clear();
    model = LoadedModel::from_parts(
        {.config = synthetic.config, .weights = std::move(synthetic.weights)}, engine);
  }
  if (!model) return fail(model.error());
  auto contexts = plan_contexts(options, (*model)->max_context());
  if (!contexts) return fail(contexts.error());

  BenchReport report;
  const ModelInfo info = (*model)->info();
  report.model = info.name + ", " + info.layout;
  if (options.on_progress) options.on_progress("measuring this machine");
  Memory& memory = (*model)->ops().memory();
  report.ceiling =
      memory.on_host() ? measure_ceiling(engine.threads) : measure_device_ceiling(memory);
  report.synthetic = options.synthetic != SyntheticWeights::kNone;
  {
    FrontierBench bench(**model, options);
    if (auto status = bench.run(*contexts, report); !status) return fail(status.error());
  }
  if (!options.draft) return report;
  (*model)->replace_ops((*model)->ops());  // those of the bench are gone
  auto drafts = bench_drafts(std::move(*model), options, *contexts);
  if (!drafts) return fail(std::move(drafts.error()));
  report.drafts = std::move(*drafts);
  return report;
}

}  // namespace tessera
