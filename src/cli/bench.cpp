// SPDX-License-Identifier: Apache-2.0
// `tessera bench`: speed at growing contexts, beside the ceilings of this machine.
#include <tessera/bench.h>
#include <tessera/json_writer.h>
#include <algorithm>
#include <cstdio>

#include "cli/bench_drafts.h"
#include "cli/command.h"
#include "cli/session.h"
#include "cli/terminal.h"

namespace tessera::cli {
namespace {

constexpr double kGiga = 1e9;
constexpr double kMega = 1e6;
constexpr double kMebi = 1024.0 * 1024.0;
constexpr double kMillisecond = 1e-3;
constexpr double kMicrosecond = 1e-6;

double percent(double value, double ceiling) {
  return ceiling > 0.0 ? 100.0 * value / ceiling : 0.0;
}

void print_ceiling(const MachineCeiling& ceiling) {
  std::printf("ceiling     %d threads: copy %.1f GB/s, read %.1f GB/s", ceiling.threads,
              ceiling.copy_bytes_per_second / kGiga, ceiling.read_bytes_per_second / kGiga);
  if (ceiling.gemm_flops > 0.0)
    std::printf(", %s %.1f GFLOP/s", ceiling.gemm_name.c_str(), ceiling.gemm_flops / kGiga);
  std::printf("\n\n");
}

/// A step on a device takes its bytes at the copy rate and about a microsecond per kernel.
void print_device_frontiers(const BenchReport& report) {
  constexpr double kSecondsPerKernel = 1e-6;
  const double copy_rate = report.ceiling.copy_bytes_per_second;
  std::printf("%8s %14s %13s %9s %10s %8s %7s %8s %8s\n", "context", "prefill tok/s",
              "decode tok/s", "us/token", "MB/token", "GB/s", "% copy", "kernels", "x floor");
  for (const FrontierRow& row : report.frontiers) {
    const double seconds = 1.0 / row.decode_tokens_per_second;
    const double floor =
        row.decode_bytes_per_token / copy_rate + kSecondsPerKernel * row.decode_kernels;
    std::printf("%8d %14.1f %13.2f %9.1f %10.2f %8.2f %7.1f %8d %8.2f\n", row.context,
                row.prefill_tokens_per_second, row.decode_tokens_per_second, seconds / kMicrosecond,
                row.decode_bytes_per_token / kMega, row.decode_bytes_per_second / kGiga,
                percent(row.decode_bytes_per_second, copy_rate), row.decode_kernels,
                seconds / floor);
  }
}

void print_host_frontiers(const BenchReport& report) {
  const MachineCeiling& ceiling = report.ceiling;
  std::printf("%8s %14s %10s %7s %13s %10s %8s %7s %7s %8s\n", "context", "prefill tok/s",
              "GFLOP/s", "% gemm", "decode tok/s", "MB/token", "GB/s", "% read", "% copy",
              "RSS MiB");
  for (const FrontierRow& row : report.frontiers) {
    std::printf("%8d %14.1f %10.2f %7.1f %13.2f %10.2f %8.2f %7.1f %7.1f %8.0f\n", row.context,
                row.prefill_tokens_per_second, row.prefill_flops / kGiga,
                percent(row.prefill_flops, ceiling.gemm_flops), row.decode_tokens_per_second,
                row.decode_bytes_per_token / kMega, row.decode_bytes_per_second / kGiga,
                percent(row.decode_bytes_per_second, ceiling.read_bytes_per_second),
                percent(row.decode_bytes_per_second, ceiling.copy_bytes_per_second),
                row.peak_rss_bytes / kMebi);
  }
}

void print_ops(const std::string& title, const std::vector<OpTiming>& timings,
               const MachineCeiling& top) {
  if (timings.empty()) return;
  double total = 0.0;
  for (const OpTiming& timing : timings) total += timing.seconds;
  std::printf("\n%-24s %10s %7s %10s %7s %10s %7s\n", title.c_str(), "ms", "share", "GB/s",
              "% read", "GFLOP/s", "% gemm");
  for (const OpTiming& timing : timings) {
    std::printf("%-24s %10.2f %6.1f%% %10.2f %7.1f %10.2f %7.1f\n", timing.op.c_str(),
                timing.seconds / kMillisecond, percent(timing.seconds, total),
                timing.bytes_per_second / kGiga,
                percent(timing.bytes_per_second, top.read_bytes_per_second), timing.flops / kGiga,
                percent(timing.flops, top.gemm_flops));
  }
}

void print_text_report(const BenchReport& report) {
  std::printf("model       %s\n", report.model.c_str());
  print_ceiling(report.ceiling);
  if (report.on_device)
    print_device_frontiers(report);
  else
    print_host_frontiers(report);
  const std::string last = std::to_string(report.frontiers.back().context);
  print_ops("decode at " + last, report.decode_ops, report.ceiling);
  print_ops("prefill up to " + last, report.prefill_ops, report.ceiling);
  print_drafts(report);
}

void write_ceiling(JsonWriter& json, const MachineCeiling& ceiling) {
  json.key("ceiling").begin_object();
  json.key("threads").integer(ceiling.threads);
  json.key("copy_bytes_per_second").real(ceiling.copy_bytes_per_second);
  json.key("read_bytes_per_second").real(ceiling.read_bytes_per_second);
  json.key("gemm_flops").real(ceiling.gemm_flops);
  json.key("gemm_name").string(ceiling.gemm_name).end_object();
}

void write_frontiers(JsonWriter& json, const std::vector<FrontierRow>& rows) {
  json.key("frontiers").begin_array();
  for (const FrontierRow& row : rows) {
    json.begin_object().key("context").integer(row.context);
    json.key("prefill_tokens_per_second").real(row.prefill_tokens_per_second);
    json.key("prefill_flops").real(row.prefill_flops);
    json.key("decode_tokens_per_second").real(row.decode_tokens_per_second);
    json.key("decode_bytes_per_token").real(row.decode_bytes_per_token);
    json.key("decode_bytes_per_second").real(row.decode_bytes_per_second);
    json.key("decode_kernels").integer(row.decode_kernels);
    json.key("peak_rss_bytes").real(row.peak_rss_bytes).end_object();
  }
  json.end_array();
}

void write_ops(JsonWriter& json, const char* name, const std::vector<OpTiming>& timings) {
  json.key(name).begin_array();
  for (const OpTiming& timing : timings) {
    json.begin_object().key("op").string(timing.op);
    json.key("seconds").real(timing.seconds);
    json.key("bytes_per_second").real(timing.bytes_per_second);
    json.key("flops").real(timing.flops).end_object();
  }
  json.end_array();
}

void print_as_json(const BenchReport& report) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().key("model").string(report.model);
  write_ceiling(json, report.ceiling);
  write_frontiers(json, report.frontiers);
  write_ops(json, "decode_ops", report.decode_ops);
  write_ops(json, "prefill_ops", report.prefill_ops);
  json.key("synthetic").boolean(report.synthetic);
  write_draft_cases(json, report.drafts);
  json.end_object();
  print_line(text);
}

}  // namespace

int bench_command(const BenchArgs& args) {
  BenchOptions options = args.bench;
  if (options.synthetic == SyntheticWeights::kNone) {
    if (auto chosen = choose_model(options.engine); !chosen) return report_error(chosen.error());
  }
  options.on_progress = [](const std::string& step) { std::fprintf(stderr, "%s\n", step.c_str()); };
  const auto report = run_bench(options);
  if (!report) return report_error(report.error());
  if (args.json) {
    print_as_json(*report);
  } else {
    print_text_report(*report);
  }
  const bool same_text = std::all_of(report->drafts.begin(), report->drafts.end(),
                                     [](const DraftCase& each) { return each.same_text(); });
  if (same_text) return kExitOk;
  return report_error({.code = Errc::kMismatch,
                       .what = "texts differ",
                       .where = "bench",
                       .expected = "the same tokens at every depth",
                       .found = "others, see the rows that are marked"});
}

}  // namespace tessera::cli
