// SPDX-License-Identifier: Apache-2.0
// Graph replays timed by events, and the table.
#include "bench/cuda/harness.h"

#include <algorithm>
#include <cmath>

#include "bench/cuda/dense_baseline.h"
#include "cuda/check.h"

namespace tessera::bench {
namespace {

constexpr double kMicro = 1e6;
constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;
constexpr double kReplayUs = 2000;  // of one graph: long against an event's resolution
constexpr int kMaxCalls = 2000;
constexpr int kWarmReplays = 2;
constexpr int kLeastReplays = 5;
constexpr int kMostReplays = 50;

class Event {
 public:
  Event() { cuda::check(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { cuda::check(cudaEventRecord(event_, stream)); }
  double us_since(const Event& start) const {
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, start.event_, event_));
    return 1e3 * double{ms};
  }

 private:
  cudaEvent_t event_ = nullptr;
};

double time_once(cudaStream_t stream, const std::function<void()>& work) {
  Event start, end;
  start.record(stream);
  work();
  end.record(stream);
  cuda::check(cudaStreamSynchronize(stream));
  return end.us_since(start);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// A recorded run of calls.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& work) {
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    cuda::check(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    cuda::check(status);
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cudaStream_t stream) { cuda::check(cudaGraphLaunch(executable_, stream)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

Timing replay(cudaStream_t stream, double budget_us, int calls, const std::function<void()>& once) {
  double estimate = 0;
  for (int warm = 0; warm < kWarmReplays; ++warm) estimate = time_once(stream, once);
  const int replays =
      std::clamp(static_cast<int>(budget_us / estimate), kLeastReplays, kMostReplays);
  std::vector<double> times;
  for (int index = 0; index < replays; ++index) times.push_back(time_once(stream, once) / calls);
  const auto [best, worst] = std::minmax_element(times.begin(), times.end());
  return {.us = median(times), .best_us = *best, .worst_us = *worst, .calls = calls};
}

double measure_copy(World& world) {
  constexpr size_t kBytes = size_t{2} << 30;
  constexpr int kRepeats = 12;
  void* from = world.bf16(kBytes / sizeof(uint16_t));
  std::byte* to = world.bytes(kBytes);
  std::vector<double> times;
  for (int repeat = 0; repeat < kRepeats; ++repeat)
    times.push_back(time_once(world.stream(), [&] {
      cuda::check(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, world.stream()));
    }));
  return 2.0 * static_cast<double>(kBytes) / median(times) * kMicro;
}

double measure_gemm(World& world) {
  constexpr int kSize = 8192, kRepeats = 12;
  constexpr size_t kCount = size_t{kSize} * kSize;
  DenseBaseline dense;
  void *x = world.bf16(kCount), *w = world.bf16(kCount), *y = world.bf16(kCount);
  const auto product = [&] { return dense.product(world.stream(), x, w, y, kSize, kSize, kSize); };
  if (!product()) return 0;
  std::vector<double> times;
  for (int repeat = 0; repeat < kRepeats; ++repeat)
    times.push_back(time_once(world.stream(), product));
  return 2.0 * kSize * kSize * kSize / median(times) * kMicro;
}

const char* verdict(const Case& data, const Timing& timing, double floor_us) {
  const bool by_time = data.goal_us == 0 || timing.us <= data.goal_us;
  const bool by_ratio = data.goal_ratio == 0 || timing.us <= data.goal_ratio * floor_us;
  if (data.goal_us == 0 && data.goal_ratio == 0) return "";
  return by_time && by_ratio ? "met" : "MISSED";
}

std::vector<Registration>& registered() {
  static std::vector<Registration> list;
  return list;
}

}  // namespace

Registration::Registration(const char* bench_name, Run bench) : name(bench_name), run(bench) {
  registered().push_back(*this);
}

const std::vector<Registration>& registrations() { return registered(); }

bool is_selected(std::string_view name, const std::vector<std::string>& parts) {
  const auto in_name = [name](const std::string& part) {
    return name.find(part) != std::string_view::npos;
  };
  return parts.empty() || std::any_of(parts.begin(), parts.end(), in_name);
}

Ceilings measure_ceilings(World& world) {
  const Ceilings ceilings{.copy_bytes_per_s = measure_copy(world),
                          .bf16_flops_per_s = measure_gemm(world)};
  world.clear();
  return ceilings;
}

double Report::floor_us(const Case& data) const {
  if (data.floor_us > 0) return data.floor_us;
  const double bytes = data.cost.bytes_read + data.cost.bytes_written;
  const double memory = bytes / ceilings_.copy_bytes_per_s;
  const double arithmetic =
      ceilings_.bf16_flops_per_s > 0 ? data.cost.flops / ceilings_.bf16_flops_per_s : 0;
  return kMicro * std::max(memory, arithmetic);
}

Timing Report::time(const Case& data, int sets, const std::function<void(int set)>& run) {
  const cudaStream_t stream = world_.stream();
  const auto calls_of = [&](int calls) {
    return [&run, sets, calls] {
      for (int call = 0; call < calls; ++call) run(call % sets);
    };
  };
  calls_of(sets)();  // scratch and counters get their size before anything is recorded
  const double once_us = time_once(stream, calls_of(sets)) / sets;
  const int wanted = static_cast<int>(std::ceil(kReplayUs / std::max(once_us, 1.0)));
  const int calls = (std::clamp(wanted, sets, kMaxCalls) + sets - 1) / sets * sets;
  const double budget_us = 1e3 * data.budget_ms;
  if (!data.graph) return replay(stream, budget_us, calls, calls_of(calls));
  Graph graph(stream, calls_of(calls));
  return replay(stream, budget_us, calls, [&] { graph.launch(stream); });
}

Timing Report::measure(const Case& data, int sets, const std::function<void(int set)>& run,
                       std::optional<Timing> baseline, const char* baseline_name) {
  if (!is_selected(group_ + " " + data.name, cases_)) return {};
  const Timing timing = time(data, sets, run);
  print(data, timing, baseline, baseline_name);
  return timing;
}

void Report::heading(const std::string& text) {
  group_ = text;
  std::printf("\n%-44s %9s %8s %8s %7s %9s %8s %7s  %s\n", text.c_str(), "us", "GB/s", "TFLOP/s",
              "ceiling", "floor us", "x floor", "goal", "");
  std::fflush(stdout);
}

void Report::print(const Case& data, const Timing& timing, std::optional<Timing> baseline,
                   const char* baseline_name) {
  const double bytes = data.cost.bytes_read + data.cost.bytes_written;
  const double floor = floor_us(data);
  const double bytes_per_s = bytes / timing.us * kMicro;
  const double flops_per_s = data.cost.flops / timing.us * kMicro;
  const double goal = data.goal_us > 0 ? data.goal_us : data.goal_ratio * floor;
  const std::string outcome = verdict(data, timing, floor);
  if (outcome == "MISSED") ++missed_;
  std::printf("%-44s %9.2f %8.0f %8.1f %6.1f%% %9.2f %8.2f %7.1f  %s", data.name.c_str(), timing.us,
              bytes_per_s / kGiga, flops_per_s / kTera, 100 * floor / timing.us, floor,
              timing.us / floor, goal, outcome.c_str());
  if (baseline) std::printf("  %.2fx faster than %s", baseline->us / timing.us, baseline_name);
  std::printf("\n");
  std::fflush(stdout);
  if (json_ == nullptr) return;
  std::fprintf(json_,
               "{\"group\":\"%s\",\"name\":\"%s\",\"us\":%.4g,\"best_us\":%.4g,\"worst_us\":%.4g,"
               "\"calls\":%d,\"bytes\":%.6g,\"flops\":%.6g,\"floor_us\":%.4g,\"goal_us\":%.4g,"
               "\"goal_ratio\":%.3g,\"goal\":\"%s\",\"baseline\":\"%s\",\"baseline_us\":%.4g}\n",
               group_.c_str(), data.name.c_str(), timing.us, timing.best_us, timing.worst_us,
               timing.calls, bytes, data.cost.flops, floor, data.goal_us, data.goal_ratio,
               outcome.c_str(), baseline_name, baseline ? baseline->us : 0.0);
  std::fflush(json_);
}

}  // namespace tessera::bench
