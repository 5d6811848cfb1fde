// SPDX-License-Identifier: Apache-2.0
// cuda_bench: runs the registered benches on one device.
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string_view>

#include "bench/cuda/harness.h"

namespace {

using namespace tessera::bench;

constexpr int kUsageError = 2;

struct Options {
  std::vector<std::string> filters{};  // parts of names; none: all
  std::vector<std::string> cases{};    // the same of the cases of a bench
  const char* json = nullptr;
  bool pdl = true;
  bool list = false;
};

bool parse(int count, char** arguments, Options& options) {
  for (int index = 1; index < count; ++index) {
    const std::string_view argument = arguments[index];
    const bool has_value = index + 1 < count;
    if (argument == "--no-pdl")
      options.pdl = false;
    else if (argument == "--list")
      options.list = true;
    else if (argument == "--filter" && has_value)
      options.filters.emplace_back(arguments[++index]);
    else if (argument == "--case" && has_value)
      options.cases.emplace_back(arguments[++index]);
    else if (argument == "--json" && has_value)
      options.json = arguments[++index];
    else
      return false;
  }
  return true;
}

Ceilings print_ceilings(const Options& options, std::FILE* json) {
  constexpr double kTera = 1e12;
  World world(options.pdl);
  const Ceilings ceilings = measure_ceilings(world);
  std::printf("%s: copy %.2f TB/s, cuBLASLt BF16 %.0f TFLOP/s (the ceilings of this run)%s\n",
              world.device_name().c_str(), ceilings.copy_bytes_per_s / kTera,
              ceilings.bf16_flops_per_s / kTera, options.pdl ? "" : ", no dependent launches");
  if (json != nullptr)
    std::fprintf(json, "{\"device\":\"%s\",\"copy_bytes_per_s\":%.4g,\"bf16_flops_per_s\":%.4g}\n",
                 world.device_name().c_str(), ceilings.copy_bytes_per_s, ceilings.bf16_flops_per_s);
  return ceilings;
}

/// False when a bench failed; the others run on a World of their own.
bool run_all(const Options& options, std::FILE* json) {
  bool good = true;
  int missed = 0;
  const Ceilings ceilings = print_ceilings(options, json);
  for (const Registration& bench : registrations()) {
    if (!is_selected(bench.name, options.filters)) continue;
    try {
      World world(options.pdl);
      Report report(world, ceilings, json, options.cases);
      report.heading(bench.name);
      bench.run(world, report);
      missed += report.missed();
    } catch (const std::exception& failure) {
      std::printf("%s FAILED: %s\n", bench.name, failure.what());
      good = false;
    }
    std::fflush(stdout);
  }
  std::printf("\n%d goals missed\n", missed);
  return good;
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

int main(int count, char** arguments) {
  Options options;
  if (!parse(count, arguments, options)) {
    std::fprintf(stderr,
                 "usage: cuda_bench [--list] [--filter PART]... [--case PART]... [--json FILE] "
                 "[--no-pdl]\n");
    return kUsageError;
  }
  if (options.list) {
    for (const Registration& bench : registrations()) std::printf("%s\n", bench.name);
    return 0;
  }
  std::unique_ptr<std::FILE, CloseFile> json;
  if (options.json != nullptr) {
    json.reset(std::fopen(options.json, "w"));
    if (!json) {
      std::perror(options.json);
      return 1;
    }
  }
  try {
    return run_all(options, json.get()) ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "cuda_bench: %s\n", failure.what());
    return 1;
  }
}
